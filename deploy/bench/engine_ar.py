"""Yardstick `engine-ar`: plain decoding of one request by our engine and by the library."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import torch

from deploy.bench.engine_runs import THREADS, built_target, decode, generate, library_model, make_job
from deploy.bench.harness import BenchOptions, Outcome, interleave, paired_ratios, spread
from target_service import linear

SAME_BAR, BEST_BAR = 1.0, 1.3
_PROMPT_LENGTH = 128


async def _as_measure(run: Callable[[], float]) -> float:
    return run()


def arms_of(arms: Mapping[str, Callable[[], float]]) -> dict[str, Callable[[], Awaitable[float]]]:
    """The harness' form of arms that compute in this thread."""
    return {name: partial(_as_measure, run) for name, run in arms.items()}


async def measure(options: BenchOptions) -> Outcome:
    """tokens/s, prefill of 128 tokens included; the library with its own matrices and, to tell kernel
    and engine apart, with our packed ones."""
    num_cycles, max_tokens = (10, 128) if options.full else (6, 48)
    torch.set_num_threads(THREADS)
    stock, best = (built_target(options.target, kernel) for kernel in (linear.TORCH, "auto"))
    kernel = best.description.linear_kernel
    jobs = [make_job(1, _PROMPT_LENGTH, max_tokens)]
    ours, theirs, ours_best, theirs_packed = (
        "engine, torch",
        "generate, torch",
        f"engine, {kernel}",
        f"generate, {kernel}",
    )
    arms: dict[str, Callable[[], float]] = {
        ours: partial(decode, stock.engine, jobs),
        theirs: partial(generate, library_model(options.target, linear.TORCH), jobs),
        ours_best: partial(decode, best.engine, jobs),
        theirs_packed: partial(generate, library_model(options.target, kernel), jobs),
    }
    for warm_up in arms.values():
        warm_up()
    runs = await interleave(arms_of(arms), num_cycles, options.say)
    same, packed, fastest = (
        spread(paired_ratios(runs, a, b)).median
        for a, b in ((ours, theirs), (ours_best, theirs_packed), (ours_best, theirs))
    )
    options.say(f"same kernel {same:.2f} (packed {packed:.2f}), best kernel {fastest:.2f}")
    records: list[dict[str, Any]] = [{**run, "unit": "tokens/s", "threads": THREADS} for run in runs]
    passed = same >= SAME_BAR and fastest >= BEST_BAR
    unit = f"x tokens/s of generate, best kernel (same kernel: {same:.2f}x, bar {SAME_BAR:g})"
    return Outcome(fastest, unit, BEST_BAR, passed, records)
