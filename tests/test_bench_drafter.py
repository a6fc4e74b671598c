"""Yardsticks of a trained drafter: what is asked, and what their results say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deploy.bench.drafter import (
    details_of,
    headline,
    outcome_of,
    plot,
    runs_of,
    tau_by_context,
    text_options,
)
from deploy.bench.harness import BenchOptions, report
from deploy.evaluate import CONTEXTS
from protos.errors import NotFound

PROMPTS = (Path("a.jsonl"),)


def row(
    name: str, temperature: float, tokens: int, rounds: int, context: int | None = None
) -> dict[str, Any]:
    return {
        "name": name,
        "temperature": temperature,
        "num_texts": 20,
        "num_rounds": rounds,
        "num_tokens": tokens,
        "tau": tokens / rounds if rounds else None,
        "conditional": [0.5, None],
        "context": context,
        "prompt_tokens": 100,
    }


SCORES = [
    row("gsm8k", 0.0, 200, 100),
    row("mbpp", 0.0, 100, 100),
    row("agent:code_edit", 0.0, 240, 80),
    row("trace:512", 0.0, 18, 10, 512),
    row("trace:6144", 0.0, 17, 10, 6144),
    row("all", 0.0, 300, 200),
    row("all", 1.0, 250, 200),
    row("empty", 1.0, 0, 0),
]
FOUND = {"scores": SCORES, "fingerprint": "f" * 64, "num_draft_tokens": 2}


def options(**changes: Any) -> BenchOptions:
    return BenchOptions("smollm2", False, lambda _: None, **changes)


def test_by_default_twenty_prompts_of_each_set_at_two_temperatures_and_three_contexts() -> None:
    texts = text_options(options(prompts=PROMPTS), Path("target"))
    assert (texts.prompts, texts.num_prompts, texts.max_tokens) == (PROMPTS, 20, 128)
    assert (texts.num_agent_prompts, texts.temperatures) == (60, (0.0, 1.0))
    assert texts.contexts == CONTEXTS == (512, 2048, 6144)


def test_the_value_is_tau_of_the_files_or_of_the_agent_kinds_without_any() -> None:
    assert headline(SCORES) == 1.5
    assert headline([SCORES[0]]) == 2.0
    assert headline(SCORES[2:5]) == 3.0
    assert tau_by_context(SCORES, 0.0) == {512: 1.8, 6144: 1.7}


def test_the_result_names_weights_samples_and_what_was_checked(tmp_path: Path) -> None:
    contamination = {"num_hits": 0}
    (tmp_path / "provenance.json").write_text(json.dumps({"contamination": contamination}))
    details = details_of(tmp_path, text_options(options(), Path("target")), FOUND, 2)
    result = json.loads(json.dumps(report("drafter", outcome_of(FOUND, details, 2))))
    assert result["drafter_fingerprint"] == "f" * 64
    assert (result["num_prompts"], result["num_traces"]) == (20, 4)
    assert result["contamination"] == contamination
    assert result["tau_by_context"]["T 0"] == {"512": 1.8, "6144": 1.7}
    assert (result["value"], result["pass"]) == (1.5, True)
    assert "1.80 at 512, 1.70 at 6144" in result["unit"]
    assert [run["set"] for run in result["runs"]][-1] == "all"
    assert len(result["runs"]) == len(SCORES) - 1
    plot(result, tmp_path / "drafter.png")
    assert (tmp_path / "drafter.png").stat().st_size > 1000


def test_a_row_without_rounds_is_no_run() -> None:
    assert len(runs_of(SCORES, 1)) == len(SCORES) - 1


def test_without_a_shipped_drafter_a_folder_must_be_named(tmp_path: Path) -> None:
    from deploy.shipped import trained_drafter

    with pytest.raises(NotFound, match="no checkpoint folder"):
        trained_drafter(str(tmp_path), tmp_path)
