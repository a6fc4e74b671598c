"""`dlite ablate`: arms of one budget, walked alike, done once, and a result that says when it is unfair."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from deploy.ablation_arms import BASE, BASE_ARM, GROUPS, Shape, rows_of, spread
from deploy.ablation_errors import Counts, difference_error, tau_error
from deploy.ablation_job import Asked, chosen, open_bench, run
from deploy.ablation_report import problems, report
from deploy.ablation_run import recipe_of
from deploy.ablation_texts import held_out_texts, history_share, whole_history
from deploy.questions import Asking, PromptText
from protos.errors import ContractMismatch, InvalidRequest
from tests.training_fakes import answered, learnable_target, prompts, sequences_of

ROOT = Path(__file__).parent.parent
SHAPE = Shape((0, 1, 6, 12, 17, 23, 28, 29), 49152)
SMALL = ("num_layers=1", "rank=8", "block_size=4", "draft_vocab_size=40", "autocast=none", "batch_anchors=16")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learnable_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def folder(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    asking = Asking((0.0,), max_tokens=16)
    return answered(target, tmp_path_factory.mktemp("data"), prompts(40, seed=1), asking)


def asked(target: Path, folder: Path, out: Path, **changes: Any) -> Asked:
    values = {
        "data": (folder,),
        "out": out,
        "target": str(target),
        "anchors": 64,
        "recipe": None,
        "changes": (*SMALL, "group_anchors=16", "held_out_fraction=0.3"),
        "context_data": (),
        "num_context_texts": 3,
        "whole_history": False,
        "costs_again": False,
        "threads": 1,
    }
    return Asked(**{**values, **changes})


def test_every_ablation_has_the_recipe_among_its_arms_and_each_arm_one_name() -> None:
    arms: dict[str, dict[str, object]] = {}
    for group in GROUPS:
        rows = rows_of(group, SHAPE)
        assert BASE_ARM in [row.arm.name for row in rows], group
        assert len({row.arm.name for row in rows}) == len(rows) > 1
        for row in rows:
            assert arms.setdefault(row.arm.name, dict(row.arm.changes)) == row.arm.changes
    assert {row.arm.changes.get("target_layer_ids") for row in rows_of("one-layer", SHAPE)} == {
        (0,),
        (17,),
        (29,),
        None,
    }
    assert spread(SHAPE.layers, 4) == (0, 6, 23, 29)
    tiny = rows_of("m", Shape((0, 1, 2), 61))
    assert [row.arm.name for row in tiny] == ["m-2", BASE_ARM]
    assert chosen(["head", "R", "head"]) == ("head", "R")
    assert chosen(["all"]) == GROUPS
    with pytest.raises(InvalidRequest, match="depth"):
        chosen(["heads"])


def test_arms_are_trained_walked_and_not_done_twice(target: Path, folder: Path, tmp_path: Path) -> None:
    bench = open_bench(asked(target, folder, tmp_path))
    result, text = run(("head", "one-layer", "two-stage", "baselines"), bench, tmp_path / "results")
    (budget,) = result["budgets"]
    assert budget["anchors"] == 64
    names = {"recipe", "head-none", "layer-0", "layer-1", "layer-2", "two-stage", "dlite", "dflash", "dspark"}
    assert set(budget["arms"]) == names
    for arm in budget["arms"].values():
        assert arm["anchors"] == 64
        (found,) = arm["sets"]
        assert found["tau"] == found["tau_by_k"]["3"] >= 1.0
        tokens, rounds = (sum(column) for column in zip(*found["counts"], strict=True))
        assert found["tau"] == tokens / rounds
        assert len(found["counts"]) == len(bench.held_out.sequences)
        assert set(found["tau_by_k"]) == {"2", "3"}
        assert [one["context"] for one in arm["cost"]] == [512, 2048, 6144]
    kept = {
        name: [one["state_bytes"] for one in budget["arms"][name]["cost"]] for name in ("dlite", "dflash")
    }
    assert len(set(kept["dlite"])) == 1
    assert kept["dflash"][2] == 12 * kept["dflash"][0]
    assert "DSpark-style" in text
    assert "±" in text
    weights = {name: state_weights(tmp_path / "a64" / name) for name in ("recipe", "head-none")}
    assert not weights["head-none"].any()
    assert weights["recipe"].any()
    assert (tmp_path / "results" / "ablations.png").stat().st_size > 1000
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    again, _ = run(("head",), bench, tmp_path / "results")
    assert again["budgets"] == result["budgets"]
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    assert run(("head",), bench, tmp_path / "elsewhere", ["recipe"]) == ({}, "")
    assert not (tmp_path / "elsewhere").exists()
    with pytest.raises(InvalidRequest, match="no arm 'rank-1'"):
        run(("head",), bench, tmp_path / "elsewhere", ["rank-1"])
    other = open_bench(asked(target, folder, tmp_path, changes=(*bench_changes(), "seed=5")))
    with pytest.raises(ContractMismatch, match="another --out"):
        run(("head",), other, tmp_path / "results")


def state_weights(folder: Path) -> torch.Tensor:
    """What of the head's state reaches the logits [R, R]; nothing for a head without memory."""
    weight = load_file(folder / "drafter" / "model.safetensors")["sequential_head.state_hidden_mlp.weight"]
    return weight[:, : len(weight)]


def bench_changes() -> tuple[str, ...]:
    return (*SMALL, "group_anchors=16", "held_out_fraction=0.3")


def test_budgets_are_whole_batches(target: Path, folder: Path, tmp_path: Path) -> None:
    bench = open_bench(asked(target, folder, tmp_path, anchors=70))
    recipe = recipe_of(rows_of("R", SHAPE, bench.base)[0].arm, bench)
    assert (recipe.steps, recipe.batch_anchors, recipe.rank) == (4, 16, 48)
    assert set(BASE) <= set(bench.base)


def test_rows_of_prompts_that_shards_lack_are_exported(target: Path, folder: Path, tmp_path: Path) -> None:
    texts = held_out_texts([folder], 0.3)
    assert 0.0 < texts.history < 1.0
    whole = whole_history(folder, target, tmp_path, texts.sequences)
    found = sequences_of(whole)
    assert history_share(found) == 1.0
    for ours, theirs in zip(found, texts.sequences, strict=True):
        assert torch.equal(ours.token_ids, theirs.token_ids)
        rows = ours.features[theirs.first_position :]
        assert torch.allclose(rows, theirs.features, atol=1e-5)
    assert whole_history(whole, target, tmp_path) == whole


def test_context_folders_are_walked_and_not_trained_on(target: Path, folder: Path, tmp_path: Path) -> None:
    found = [PromptText((), f"trace:{20 + i % 2}", one.token_ids) for i, one in enumerate(prompts(6, seed=9))]
    texts = answered(target, tmp_path / "traces", found, Asking((0.0,), max_tokens=8))
    bench = open_bench(asked(target, folder, tmp_path / "out", context_data=(texts,), num_context_texts=2))
    assert [(one.name, len(one.sequences), one.history) for one in bench.contexts] == [
        ("trace:20", 2, 1.0),
        ("trace:21", 2, 1.0),
    ]
    run(("head",), bench, tmp_path / "results")
    result, text = run(("baselines",), bench, tmp_path / "results")
    for name in ("recipe", "dspark"):
        sets = result["budgets"][0]["arms"][name]["sets"]
        assert [one["name"] for one in sets] == ["held-out", "trace:20", "trace:21"]
    assert "held-out" in text
    assert not [fault for fault in result["problems"] if "texts" in fault]


def test_errors_are_those_of_ratios_over_texts() -> None:
    assert tau_error([Counts(4, 2)]) is None
    assert tau_error([Counts(4, 2), Counts(6, 3)]) == pytest.approx(0.0)
    # Two texts of 4 rounds, tau 1 and 3: half the difference.
    assert tau_error([Counts(4, 4), Counts(12, 4)]) == pytest.approx(1.0)
    ours = [Counts(10 * tau, 10) for tau in (1, 2, 5, 3)]
    theirs = [Counts(10 * tau + 1, 10) for tau in (1, 2, 5, 3)]
    assert difference_error(ours, theirs) == pytest.approx(0.0)
    error = tau_error(ours)
    assert error is not None
    assert error > 0.5


def whole_result() -> list[dict[str, Any]]:
    """Two fair budgets, made up."""
    from draft_service.training.state import digest_of

    budgets = []
    for anchors, groups in ((20_000, GROUPS), (150_000, ("baselines",))):
        arms: dict[str, Any] = {}
        tables: dict[str, Any] = {}
        for group in groups:
            rows = rows_of(group, SHAPE)
            tables[group] = [{"label": row.label, "arm": row.arm.name} for row in rows]
            for row in rows:
                recipe = {**BASE, **row.arm.changes, "steps": anchors // 64}
                made_of = {"recipe": recipe, "data": [{"shards_sha256": "a"}]}
                arms[row.arm.name] = {
                    "provenance": made_of,
                    "digest": digest_of(made_of),
                    "texts": {"held-out": "b"},
                    "anchors": anchors // 64 * 64,
                }
        budgets.append({"anchors": anchors, "groups": tables, "arms": arms})
    return budgets


def test_a_whole_and_fair_result_has_no_problem() -> None:
    assert problems(whole_result()) == []


def drop_group(budgets: list[dict[str, Any]]) -> None:
    del budgets[0]["groups"]["K"]


def drop_arm(budgets: list[dict[str, Any]]) -> None:
    del budgets[0]["arms"]["two-stage"]


def drop_long(budgets: list[dict[str, Any]]) -> None:
    del budgets[1]


def more_anchors(budgets: list[dict[str, Any]]) -> None:
    arm = budgets[0]["arms"]["rank-48"]
    arm["anchors"] *= 2


def edited_recipe(budgets: list[dict[str, Any]]) -> None:
    budgets[0]["arms"]["rank-48"]["provenance"]["recipe"]["rank"] = 64


def other_data(budgets: list[dict[str, Any]]) -> None:
    from draft_service.training.state import digest_of

    arm = budgets[1]["arms"]["dflash"]
    arm["provenance"]["data"] = [{"shards_sha256": "c"}]
    arm["digest"] = digest_of(arm["provenance"])


def other_texts(budgets: list[dict[str, Any]]) -> None:
    budgets[0]["arms"]["depth-1"]["texts"] = {"held-out": "z"}


def unwalked(budgets: list[dict[str, Any]]) -> None:
    budgets[0]["arms"]["dflash"]["texts"]["context"] = "x"


def other_order(budgets: list[dict[str, Any]]) -> None:
    from draft_service.training.state import digest_of

    arm = budgets[0]["arms"]["dspark"]
    arm["provenance"]["recipe"]["anchors_per_text"] = 1
    arm["digest"] = digest_of(arm["provenance"])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (drop_group, "no ablation K"),
        (drop_arm, "two-stage is missing"),
        (drop_long, "150000"),
        (more_anchors, "rank-48"),
        (edited_recipe, "digest of rank-48"),
        (other_data, "different data"),
        (other_texts, "different held-out texts"),
        (unwalked, "same texts"),
        (other_order, "anchors_per_text"),
    ],
)
def test_what_makes_arms_incomparable_is_named(
    damage: Callable[[list[dict[str, Any]]], None], words: str
) -> None:
    budgets = copy.deepcopy(whole_result())
    damage(budgets)
    assert any(words in fault for fault in problems(budgets))


def test_a_later_call_adds_to_the_result() -> None:
    small, long = whole_result()
    first = report([small])
    assert not first["pass"]
    assert report([long], first)["pass"]


@pytest.mark.parametrize("file", sorted((ROOT / "docs" / "results").glob("ablations.json")))
def test_the_committed_result_is_whole_and_fair(file: Path) -> None:
    result = json.loads(file.read_text())
    assert problems(result["budgets"]) == result["problems"] == []
    assert result["pass"] is True
