"""Yardstick `drafter`: tokens a round of a drafter on held-out texts, walked as served.

Sets are the prompt files given (20 prompts, 128 tokens each), held-out agent prompts by kind, and held-out
agent traces by context, each at temperature 0 and 1. Answers are kept in the user's cache: an interrupted
run goes on, and another drafter is measured on the same texts.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy.bench.harness import BenchOptions, Outcome
from deploy.demo_model import resolve_model
from deploy.evaluate import CONTEXTS, SEED
from deploy.evaluation import ALL, EvaluationOptions, report
from deploy.evaluation_report import draw
from deploy.evaluation_texts import TextOptions, uncovered_files
from deploy.model_cache import cache_root
from deploy.shipped import trained_drafter

# A round commits one token without any drafter.
BAR = 1.0
_TEMPERATURES = (0.0, 1.0)
_PROMPTS_OF_A_KIND = 20


def text_options(options: BenchOptions, target: Path) -> TextOptions:
    """What is asked; `--full` takes 60 prompts of each file and kind, and 12 traces of each context."""
    times = 3 if options.full else 1
    return TextOptions(
        target=target,
        prompts=options.prompts,
        num_prompts=_PROMPTS_OF_A_KIND * times,
        num_agent_prompts=3 * _PROMPTS_OF_A_KIND * times,
        num_traces=4 * times,
        contexts=CONTEXTS,
        max_tokens=128,
        temperatures=_TEMPERATURES,
        seed=SEED,
    )


async def measure(options: BenchOptions) -> Outcome:
    """One evaluation; the value is tau over all files at temperature 0, or over the agent kinds without
    files."""
    target = resolve_model(options.target)
    drafter = trained_drafter(options.drafter, target)
    threads = os.cpu_count() or 1
    texts = text_options(options, target)
    evaluation = EvaluationOptions(drafter, texts, cache_root() / "evaluation", threads=threads)
    started = time.monotonic()
    found = await asyncio.to_thread(report, evaluation)
    seconds = time.monotonic() - started
    options.say(f"{drafter.name}: {len(found['scores'])} rows in {seconds:.0f} s")
    return outcome_of(found, details_of(drafter, texts, found, threads), threads)


def outcome_of(found: Mapping[str, Any], details: Mapping[str, Any], threads: int) -> Outcome:
    """The result of an evaluation's scores."""
    value = headline(found["scores"])
    by_context = tau_by_context(found["scores"], 0.0)
    flat = ", ".join(f"{tau:.2f} at {context}" for context, tau in by_context.items())
    unit = f"tokens a round at T = 0 (agent traces: {flat}; aim 2.2, flat)"
    return Outcome(value, unit, BAR, value > BAR, runs_of(found["scores"], threads), details)


def runs_of(scores: Sequence[Mapping[str, Any]], threads: int) -> list[dict[str, Any]]:
    """One record for each set, context and temperature."""
    runs = []
    for one in scores:
        if one["tau"] is not None:
            arm = f"{one['name']}, T {one['temperature']:g}"
            runs.append({"arm": arm, "value": one["tau"], "set": one["name"], "threads": threads, **one})
    return runs


def details_of(drafter: Path, texts: TextOptions, found: Mapping[str, Any], threads: int) -> dict[str, Any]:
    """Of which weights, on how much text, and whether training can have seen it."""
    provenance = drafter / "provenance.json"
    contamination = json.loads(provenance.read_text())["contamination"] if provenance.is_file() else None
    return {
        "drafter": drafter.name,
        "drafter_fingerprint": found["fingerprint"],
        "num_draft_tokens": found["num_draft_tokens"],
        "max_tokens": texts.max_tokens,
        "num_prompts": texts.num_prompts,
        "num_traces": texts.num_traces,
        "seed": texts.seed,
        "contamination": contamination,
        "files_not_checked_against_training": uncovered_files(texts.prompts),
        "tau_by_context": {f"T {t:g}": tau_by_context(found["scores"], t) for t in texts.temperatures},
    }


def headline(scores: Sequence[Mapping[str, Any]]) -> float:
    """Tau at temperature 0 over the files, or the agent kinds where there is no file."""
    greedy = [one for one in scores if one["temperature"] == 0.0]
    together = [one for one in greedy if one["name"] == ALL]
    files = [one for one in greedy if ":" not in one["name"]]
    chosen = together or files or [one for one in greedy if one["name"].startswith("agent:")]
    return float(sum(one["num_tokens"] for one in chosen) / sum(one["num_rounds"] for one in chosen))


def tau_by_context(scores: Sequence[Mapping[str, Any]], temperature: float) -> dict[int, float]:
    """Tau of agent traces by the length of their context."""
    return {
        one["context"]: one["tau"]
        for one in scores
        if one["context"] is not None and one["temperature"] == temperature
    }


def plot(result: Mapping[str, Any], path: Path) -> None:
    """The matrix of conditional acceptance, as a PNG."""
    draw({"drafter": result["drafter"], "scores": result["runs"]}, path)
