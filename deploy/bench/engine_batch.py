"""Yardstick `engine-batch`: eight requests of unequal length, continuous batching against padding."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from deploy.bench.engine_ar import arms_of
from deploy.bench.engine_runs import THREADS, built_target, decode, generate, library_model, make_job
from deploy.bench.harness import BenchOptions, Outcome, interleave, paired_ratios, spread
from target_service import linear

BAR = 1.5
# Prompt and answer lengths of the eight requests, and answers are scaled by the form of the run.
_LENGTHS = ((32, 64), (64, 16), (96, 40), (128, 24), (160, 56), (192, 8), (224, 32), (256, 48))


async def measure(options: BenchOptions) -> Outcome:
    """Useful tokens/s; `generate` goes on until the longest answer is done."""
    num_cycles, scale = (8, 2) if options.full else (4, 1)
    torch.set_num_threads(THREADS)
    stock, best = (built_target(options.target, kernel) for kernel in (linear.TORCH, "auto"))
    kernel = best.description.linear_kernel
    jobs = [make_job(n, prompt, scale * tokens) for n, (prompt, tokens) in enumerate(_LENGTHS)]
    ours, theirs, ours_best = "engine, torch", "padded generate, torch", f"engine, {kernel}"
    arms: dict[str, Callable[[], float]] = {
        ours: partial(decode, stock.engine, jobs),
        theirs: partial(generate, library_model(options.target, linear.TORCH), jobs),
        ours_best: partial(decode, best.engine, jobs),
    }
    runs = await interleave(arms_of(arms), num_cycles, options.say)
    same, fastest = (spread(paired_ratios(runs, arm, theirs)).median for arm in (ours, ours_best))
    options.say(f"same kernel {same:.2f}, best kernel {fastest:.2f}")
    records: list[dict[str, Any]] = [{**run, "unit": "tokens/s", "threads": THREADS} for run in runs]
    unit = f"x tokens/s of padded generate (same kernel: {same:.2f}x)"
    return Outcome(fastest, unit, BAR, fastest >= BAR, records)
