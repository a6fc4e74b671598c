"""From a run to a shipped folder: small, documented by what it was made of, and served as it is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from deploy.contamination import set_hashes
from deploy.data_sources import known_sources
from deploy.learning_curve import curve, draw_curve, read_run
from deploy.model_card import model_card
from deploy.questions import Asking
from deploy.shipped import AUTO, DRAFTERS, UNTRAINED, named_drafter, shipped_drafter
from deploy.shipping import MAX_BYTES, ShipOptions, read_provenance, ship, write_card
from draft_service.checkpoint import read_draft_config
from draft_service.loader import load_drafter
from draft_service.training.run import train
from draft_service.weights import fingerprint
from protos.errors import ContractMismatch, InvalidRequest, NotFound
from target_service.fingerprint import model_fingerprint
from tests.coordinator_fakes import tokenizer_files
from tests.training_fakes import Seen, answered, learnable_target, prompts, run_options, small_recipe

ROOT = Path(__file__).parent.parent
SOURCES = {"seed-1": {"title": "random ids", "licence": "none needed", "url": ""}}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with target/, data/, run/ and sources.json."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("ship")
    target = learnable_target(folder / "target")
    for name, content in tokenizer_files().items():
        (target / name).write_bytes(content)
    answered(target, folder / "data", prompts(60, seed=1), Asking((0.0, 0.7), max_tokens=24))
    train(small_recipe(), run_options(folder / "data", target, folder / "run"), Seen())
    (folder / "sources.json").write_text(json.dumps(SOURCES))
    return folder


def options(made: Path, out: Path, **changes: Any) -> ShipOptions:
    values: dict[str, Any] = {
        "run": made / "run",
        "data": (made / "data",),
        "target": made / "target",
        "out": out,
        "results": out.parent / "results",
        "sources": (made / "sources.json",),
    }
    return ShipOptions(**{**values, **changes})


@pytest.fixture(scope="module")
def shipped(made: Path) -> Path:
    ship(options(made, made / "out" / "one"))
    return made / "out" / "one"


def test_a_run_becomes_a_folder_that_is_served(made: Path, shipped: Path) -> None:
    assert {path.name for path in shipped.iterdir()} == {
        *("config.json", "model.safetensors", "provenance.json", "README.md")
    }
    load_drafter(shipped, made / "target").self_test()
    stored, trained = (
        (path / "model.safetensors").stat().st_size for path in (shipped, made / "run" / "drafter")
    )
    assert stored < trained


def test_provenance_holds_what_the_run_and_its_data_say(made: Path, shipped: Path) -> None:
    document = read_provenance(shipped)
    assert document["fingerprint"] == fingerprint(shipped)
    assert document["run"] == json.loads((made / "run" / "provenance.json").read_text())
    (source,) = document["sources"]
    assert (source["name"], source["licence"], source["num_sequences"]) == ("seed-1", "none needed", 60)
    assert source["temperatures"] == [0.0, 0.7]
    assert document["contamination"]["num_hits"] == 0
    assert document["contamination"]["num_hashes"] > 29_000
    run = read_run(made / "run")
    assert document["training"]["num_anchors"] == run.steps * 32
    assert 0 < document["training"]["hours"] < 1


def test_the_card_tells_recipe_data_licences_and_hashes(made: Path, shipped: Path) -> None:
    card = (shipped / "README.md").read_text()
    document = read_provenance(shipped)
    wanted = [
        *("none needed", "`draft_vocab_size`", "hours of steps", "`seed-1`", document["fingerprint"]),
        *(one["sha256"] for one in document["files"].values()),
        *(one["shards_sha256"] for one in document["run"]["data"]),
        document["run"]["target"]["embedding_hash"],
    ]
    assert [text for text in wanted if text not in card] == []
    assert card.count("Not measured yet") == 2


def result(name: str, digest: str, **fields: Any) -> dict[str, Any]:
    machine = {"cores": 2, "cpu": "some cpu"}
    return {
        "name": name,
        "bar": 1.0,
        "commit": "0123456789ab",
        "machine": machine,
        "drafter_fingerprint": digest,
        **fields,
    }


def test_scores_come_from_results_of_these_weights_only(shipped: Path) -> None:
    document = read_provenance(shipped)
    run = {
        "set": "gsm8k", "context": None, "temperature": 1.0, "num_texts": 20, "num_rounds": 900,
        "value": 1.87, "conditional": [0.61, None],
    }  # fmt: skip
    kind = {"kind": "code_edit", "speedup": 1.21, "tau": 2.43, "break_even_tau": None}
    mine = [
        result("drafter", document["fingerprint"], runs=[run]),
        result("speedup", document["fingerprint"], kinds=[kind]),
    ]
    card = model_card(document, mine)
    assert "| gsm8k | - | 1 | 20 | 900 | 1.87 | 0.61 | - |" in card
    assert "| code_edit | 1.21 | 2.43 | - |" in card
    assert "Not measured yet" not in card
    others = [{**one, "drafter_fingerprint": "of another"} for one in mine]
    assert model_card(document, others) == model_card(document, [])


def test_the_card_is_written_anew_from_saved_results(made: Path, shipped: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(shipped, tmp_path / "folder"))
    kinds = [{"kind": "log_reading", "speedup": 1.5, "tau": 2.0, "break_even_tau": 1.4}]
    saved = result("speedup", fingerprint(folder), kinds=kinds)
    (tmp_path / "speedup.json").write_text(json.dumps(saved))
    (tmp_path / "learning-curve.json").write_text('{"name": "no yardstick"}')
    assert "| log_reading | 1.50 | 2.00 | 1.40 |" in write_card(folder, tmp_path)
    assert write_card(folder, tmp_path / "nowhere") == (shipped / "README.md").read_text()


def test_shipping_twice_writes_the_same_bytes(made: Path, shipped: Path) -> None:
    again = made / "out" / "two"
    for _ in range(2):
        ship(options(made, again))
    assert all(
        path.read_bytes() == (again / path.name).read_bytes() for path in shipped.iterdir() if path.is_file()
    )


def test_a_source_without_a_known_licence_is_refused(made: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="seed-1"):
        ship(options(made, tmp_path / "out", sources=()))
    (tmp_path / "bad.json").write_text('{"x": {"title": "t"}}')
    with pytest.raises(InvalidRequest, match=r"bad\.json"):
        known_sources([tmp_path / "bad.json"])


def test_other_data_than_the_runs_is_refused(made: Path, tmp_path: Path) -> None:
    answered(made / "target", tmp_path / "data", prompts(3, seed=1), Asking((0.0,), max_tokens=4))
    for data in ((tmp_path / "data",), (made / "data", tmp_path / "data")):
        with pytest.raises(ContractMismatch, match="trained on shards"):
            ship(options(made, tmp_path / "out", data=data))
    assert not (tmp_path / "out").exists()


def test_evaluation_text_in_the_data_is_refused(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = "a b c d e f g h i j k l m"
    monkeypatch.setattr("deploy.shipping.hashes_of", lambda against: set_hashes([run]))
    monkeypatch.setattr("deploy.shipping.texts_of", lambda folders, target: iter([("web", "x " + run)]))
    with pytest.raises(ContractMismatch, match="1 runs of evaluation text, the first from web"):
        ship(options(made, tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_no_run_is_named(tmp_path: Path, made: Path) -> None:
    with pytest.raises(NotFound, match="no folder of"):
        read_run(tmp_path)
    shutil.copy(made / "run" / "provenance.json", tmp_path)
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(NotFound, match="not saved yet"):
        read_run(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(InvalidRequest, match="loss"):
        read_run(tmp_path)


def test_the_curve_of_runs_in_turn_counts_on(made: Path, tmp_path: Path) -> None:
    run = read_run(made / "run")
    found = curve([run, run])
    anchors = [point["anchors"] for point in found["points"]]
    assert anchors == sorted(anchors)
    assert anchors[-1] == 2 * run.num_anchors
    assert found["points"][-1]["hours"] == pytest.approx(2 * run.seconds / 3600)
    draw_curve(found, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 1000


def test_auto_is_the_drafter_of_exactly_this_target(made: Path, shipped: Path, tmp_path: Path) -> None:
    root, target = shipped.parent, made / "target"
    found = shipped_drafter(target, root).folder
    assert found is not None
    assert read_draft_config(found).target_fingerprint == model_fingerprint(target)
    other = Path(shutil.copytree(target, tmp_path / "other"))
    (other / "chat_template.jinja").write_text("another")
    assert "fingerprint" in shipped_drafter(other, root).reason
    assert shipped_drafter(target, tmp_path / "empty").reason == "no drafter is shipped"
    bare = Path(shutil.copytree(shipped, tmp_path / "root" / "bare"))
    (bare / "model.safetensors").unlink()
    assert "has no model.safetensors" in shipped_drafter(target, bare.parent).reason


def test_what_auto_became_is_said(made: Path) -> None:
    said: list[str] = []
    assert named_drafter("none", made / "target", said.append) == "none"
    assert said == []
    assert named_drafter(AUTO, made / "target", said.append) == UNTRAINED
    assert "untrained one takes its place" in said[0]


COMMITTED = sorted(path.parent for path in DRAFTERS.glob("*/model.safetensors"))


SETS = ("gsm8k", "humaneval", "mbpp", "mt-bench", "swe-bench")
AGENTS = ("agent:json_tool_call", "agent:code_edit", "agent:log_reading")


@pytest.mark.parametrize("folder", COMMITTED, ids=lambda path: path.name)
def test_a_committed_drafter_has_committed_scores_on_every_set(folder: Path) -> None:
    """20 prompts of each set and agent kind at two temperatures, and agent traces of three contexts."""
    saved = json.loads((ROOT / "docs" / "results" / "drafter.json").read_text())
    assert saved["drafter_fingerprint"] == fingerprint(folder)
    assert saved["contamination"]["num_hits"] == 0
    assert saved["files_not_checked_against_training"] == []
    assert (saved["max_tokens"], saved["num_prompts"]) == (128, 20)
    rows = {(run["set"], run["temperature"]): run for run in saved["runs"]}
    for temperature in (0.0, 1.0):
        for name in (*SETS, *AGENTS):
            assert rows[name, temperature]["num_texts"] == 20, name
        assert {run["context"] for run in saved["runs"] if run["temperature"] == temperature} >= {
            512,
            2048,
            6144,
        }


@pytest.mark.parametrize("folder", COMMITTED, ids=lambda path: path.name)
def test_a_committed_drafter_is_small_and_its_card_is_its_provenance(folder: Path) -> None:
    assert sum(file.stat().st_size for file in folder.iterdir()) <= MAX_BYTES
    document = read_provenance(folder)
    assert document["fingerprint"] == fingerprint(folder)
    assert document["contamination"]["num_hits"] == 0
    assert document["sources"]
    results = [json.loads(path.read_text()) for path in (ROOT / "docs" / "results").glob("*.json")]
    assert (folder / "README.md").read_text() == model_card(document, [r for r in results if "bar" in r])
