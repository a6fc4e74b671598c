"""Evaluation: sets and contexts, answers that are kept, tables and pictures, and text that training saw."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from deploy import evaluation_texts
from deploy.contamination import set_hashes, write_hashes
from deploy.evaluation import ALL, EvaluationOptions, report
from deploy.evaluation_report import as_table, draw
from deploy.evaluation_texts import TextOptions, text_sets, uncovered_files
from draft_service.untrained import UntrainedOptions, save_untrained
from protos.errors import ContractMismatch, InvalidRequest
from tests.coordinator_fakes import tokenizer_files
from tests.fakes import tiny_target
from tests.training_fakes import sequences_of

VOCAB = 260
SIZE = {"num_tapped": 3, "num_layers": 1, "mask_token_id": 259}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with target/, two drafters of it, and two files of prompts."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("evaluation")
    model = tiny_target("llama", dtype=torch.float32, vocab=VOCAB)
    model.config.max_position_embeddings = 8192
    model.save_pretrained(folder / "target")
    for name, content in tokenizer_files().items():
        (folder / "target" / name).write_bytes(content)
    for number in range(2):
        size = UntrainedOptions(**SIZE, rank=8 + number)  # type: ignore[arg-type]
        save_untrained(folder / f"drafter{number}", folder / "target", size)
    for name in ("one", "two"):
        lines = [json.dumps({"turns": [f"{name} {n}"]}) for n in range(5)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    return folder


def options(made: Path, work: Path, drafter: int = 0, **changes: Any) -> EvaluationOptions:
    texts: dict[str, Any] = {
        "target": made / "target",
        "prompts": (made / "one.jsonl", made / "two.jsonl"),
        "num_prompts": 3,
        "num_agent_prompts": 6,
        "num_traces": 2,
        "contexts": (2500, 3000),
        "max_tokens": 10,
        "temperatures": (0.0, 1.0),
        "seed": 3,
    }
    return EvaluationOptions(made / f"drafter{drafter}", TextOptions(**{**texts, **changes}), work)


@pytest.fixture(scope="module")
def work(made: Path) -> Path:
    return made / "work"


@pytest.fixture(scope="module")
def found(made: Path, work: Path) -> dict[str, Any]:
    return report(options(made, work))


def test_every_set_context_and_temperature_has_a_row(found: dict[str, Any]) -> None:
    rows = [(one["name"], one["context"], one["temperature"], one["num_texts"]) for one in found["scores"]]
    kinds = [(f"agent:{kind}", None) for kind in ("json_tool_call", "code_edit", "log_reading")]
    sets = [("one", None, 3), ("two", None, 3), *((*kind, 2) for kind in kinds)]
    sets += [("trace:2500", 2500, 2), ("trace:3000", 3000, 2), (ALL, None, 6)]
    assert rows == [(name, context, t, n) for t in (0.0, 1.0) for name, context, n in sets]
    for one in found["scores"]:
        assert one["tau"] >= 1.0
        # The first token is the anchor, and the last one may be left over.
        assert 8 * one["num_texts"] <= one["num_tokens"] <= 9 * one["num_texts"]
        assert len(one["conditional"]) == found["num_draft_tokens"]
        if one["context"]:
            assert 0.8 * one["context"] < one["prompt_tokens"] <= one["context"]


def test_another_drafter_needs_no_answer_anew(
    made: Path, work: Path, found: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_target(*_: object) -> None:
        raise AssertionError("the target was asked again")

    monkeypatch.setattr(evaluation_texts, "answer_all", no_target)
    other = report(options(made, work, drafter=1))
    assert other["fingerprint"] != found["fingerprint"]
    rows, same = ([(one["name"], one["num_texts"]) for one in each["scores"]] for each in (other, found))
    assert rows == same
    assert report(options(made, work)) == found
    with pytest.raises(AssertionError, match="asked again"):
        report(options(made, work, max_tokens=11))


def test_an_interrupted_evaluation_goes_on(
    made: Path, work: Path, found: dict[str, Any], tmp_path: Path
) -> None:
    """A folder that is not complete is answered to its end, not taken for the whole."""
    calls = []
    real = evaluation_texts.answer_all

    def stops_early(asked: Any, *rest: Any) -> Any:
        calls.append(len(asked))
        if len(calls) == 1:
            raise KeyboardInterrupt
        return real(asked, *rest)

    small = replace(options(made, tmp_path), texts=replace(options(made, tmp_path).texts, num_traces=0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation_texts, "answer_all", stops_early)
        with pytest.raises(KeyboardInterrupt):
            report(small)
        again = report(small)
    assert calls == [24, 24]
    mine = [one for one in found["scores"] if one["context"] is None]
    assert again["scores"] == mine


def test_table_and_picture(found: dict[str, Any], tmp_path: Path) -> None:
    console = Console(width=80, record=True)
    console.print(as_table(found))
    text = console.export_text()
    assert all(name in text for name in ("agent:json_tool_call", "trace:2500", "trace:3000", "tau", "a7"))
    assert "…" not in text
    draw(found, tmp_path / "matrix.png")
    assert (tmp_path / "matrix.png").read_bytes()[:4] == b"\x89PNG"


def test_prompts_that_training_data_holds_are_refused(made: Path, work: Path, found: dict[str, Any]) -> None:
    """The answers themselves are shards; they hold every prompt."""
    (shards,) = [path for path in work.iterdir() if len(sequences_of(path)) == 24]
    seen = replace(options(made, work), training_data=(shards,))
    with pytest.raises(ContractMismatch, match="holds a run of the prompts"):
        report(seen)
    unseen = options(made, work, num_agent_prompts=0, num_traces=0)
    clean = report(replace(unseen, training_data=(shards,)))
    assert clean["runs_of_13_words_not_in_training_data"] == 0  # its prompts are shorter than 13 words


def test_files_that_the_projects_list_does_not_cover_are_named(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / "long.jsonl"
    long.write_text(json.dumps({"turns": ["a b c d e f g h i j k l m n"]}))
    assert uncovered_files([long, made / "one.jsonl"]) == ["long.jsonl"]
    write_hashes(tmp_path / "runs.bin", set_hashes(["a b c d e f g h i j k l m n"]))
    monkeypatch.setattr(evaluation_texts, "HASHES", tmp_path / "runs.bin")
    assert uncovered_files([long]) == []


def test_what_cannot_be_evaluated_is_said(made: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="--agent or --traces"):
        text_sets(TextOptions(made / "target"))
    with pytest.raises(InvalidRequest, match="two files of one name"):
        text_sets(TextOptions(made / "target", (made / "one.jsonl", made / "one.jsonl")))
    with pytest.raises(InvalidRequest, match="9 proposals"):
        report(replace(options(made, tmp_path), num_draft_tokens=9))
