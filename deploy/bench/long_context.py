"""Yardstick `long-context`: what a round costs, and what memory it holds, as the text grows to 6k.

A prompt grows to each context (its earlier pages are found in the prefix cache); then rounds of one
row (plain) and of eight rows (a verified block) are timed. KV grows with the context; what the
drafter is sent, and what it keeps, does not. `--save` writes the plot beside the result.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.bench.engine_runs import THREADS
from deploy.bench.harness import BenchOptions, Outcome
from deploy.demo_model import resolve_model
from target_service.build import BuiltTarget, build
from target_service.commands import Address, Close, Open, RequestKey, SamplingParams, Verdict, Verify
from target_service.config import TargetConfig

CONTEXTS = (512, 1024, 2048, 4096, 6144)
BLOCK = 8
# Weights in float16 are 269 MB and KV is 46 kB a token: reading both, a round at 6k takes
# (269 + 283) / (269 + 24) = 1.9 times the round at 0.5k. The bar leaves attention's arithmetic.
BAR = 3.0
_KEY = bytes(16)
_DECODED = 64


def _prompt(length: int) -> tuple[int, ...]:
    return tuple(1000 + (7 * i + i * i // 3) % 10_000 for i in range(length))


def _decide(built: BuiltTarget, command: Open | Verify) -> Verdict:
    assert not built.engine.apply(command)
    while True:
        for event in built.engine.step():
            if isinstance(event, Verdict):
                return event


@dataclass(eq=False)
class _Text:
    """One request grown to a context, and the times of its rounds by rows."""

    key: RequestKey
    prefill_seconds: float
    committed_length: int
    number: int = 0
    times: dict[int, list[float]] = field(default_factory=lambda: {1: [], BLOCK: []})


def _grow(built: BuiltTarget, context: int) -> _Text:
    key = RequestKey("bench", str(context))
    params = SamplingParams(max_tokens=_DECODED * BLOCK, ignore_eos=True)
    prompt = _prompt(context)
    started = time.perf_counter()
    verdict = _decide(built, Open(Address(key, 1, 0), prompt, len(prompt), _KEY, params))
    return _Text(key, time.perf_counter() - started, verdict.committed_length)


def _time_round(built: BuiltTarget, text: _Text, rows: int) -> None:
    text.number += 1
    command = Verify(
        Address(text.key, 1, text.number), text.committed_length, tuple(range(20, 20 + rows - 1))
    )
    started = time.perf_counter()
    text.committed_length = _decide(built, command).committed_length
    text.times[rows].append(1e3 * (time.perf_counter() - started))


def round_times(built: BuiltTarget, repeats: int) -> dict[int, dict[str, float]]:
    """For each context: seconds of prefill, median milliseconds of rounds of 1 and 8 rows, KV held.

    The contexts take turns, forwards and backwards, so that a drifting machine favours none.
    """
    texts = {context: _grow(built, context) for context in CONTEXTS}
    for cycle in range(repeats):
        for context in CONTEXTS if cycle % 2 == 0 else CONTEXTS[::-1]:
            for rows in (1, BLOCK):
                _time_round(built, texts[context], rows)
    held = {s.key: s for s in built.engine.requests.all()}
    results = {}
    for context, text in texts.items():
        results[context] = {
            "prefill_seconds": text.prefill_seconds,
            "cached_tokens": float(held[text.key].cached_tokens),
            "one_row_ms": statistics.median(text.times[1]),
            "block_ms": statistics.median(text.times[BLOCK]),
            "kv_mib": len(held[text.key].pages) * _page_bytes(built) / (1 << 20),
        }
        built.engine.apply(Close(Address(text.key, 1, text.number), text.committed_length))
    return results


def _page_bytes(built: BuiltTarget) -> int:
    kv = built.engine.model.kv  # type: ignore[attr-defined]
    return int(kv.shape.bytes_per_token() * kv.page_size)


async def measure(options: BenchOptions) -> Outcome:
    """Grows the texts, then times their rounds in turn."""
    folder = resolve_model(options.target)
    config = TargetConfig.load(None, target=str(folder), threads=THREADS, num_pages=1024)
    built = await asyncio.to_thread(build, config)
    results = await asyncio.to_thread(round_times, built, 40 if options.full else 16)
    num_features = len(built.description.tapped_layers) * built.description.hidden_size
    runs: list[dict[str, Any]] = []
    for context, times in results.items():
        options.say(f"context {context}: {', '.join(f'{k} {v:.1f}' for k, v in times.items())}")
        record = {"arm": f"context {context}, block of {BLOCK}", "value": times["block_ms"], **times}
        sent = {"draft_kv_mib": 0.0, "feature_bytes_f32": num_features * 4}
        runs.append({**record, **sent, "context": context, "threads": THREADS})
    first, last = _median(runs, CONTEXTS[0]), _median(runs, CONTEXTS[-1])
    return Outcome(last / first, "x round time at 6k over 0.5k (8 rows)", BAR, last / first <= BAR, runs)


def _median(runs: Sequence[Mapping[str, Any]], context: int) -> float:
    return float(statistics.median(run["block_ms"] for run in runs if run["context"] == context))


def plot(result: Mapping[str, Any], path: Path) -> None:
    """Time of a round and memory against context, as a PNG."""
    from matplotlib.figure import Figure

    contexts = sorted({run["context"] for run in result["runs"]})

    def column(name: str) -> list[float]:
        return [
            statistics.median(run[name] for run in result["runs"] if run["context"] == context)
            for context in contexts
        ]

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(contexts, column("one_row_ms"), "o-", label="1 row (plain decoding)")
    left.plot(contexts, column("block_ms"), "s-", label=f"{BLOCK} rows (a verified block)")
    left.set(xlabel="context (tokens)", ylabel="ms a round", title="Round time", ylim=(0, None))
    left.legend()
    right.plot(contexts, column("kv_mib"), "o-", label="target KV")
    right.plot(contexts, column("draft_kv_mib"), "s-", label="drafter KV (history-free)")
    right.set(xlabel="context (tokens)", ylabel="MiB a request", title="Memory")
    right.legend()
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
