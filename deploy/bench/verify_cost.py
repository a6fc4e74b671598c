"""Yardstick `verify-cost`: a step of 4 and 8 rows against the fastest step of one row."""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import Any

import torch

from deploy.bench.engine_ar import arms_of
from deploy.bench.engine_runs import THREADS
from deploy.bench.harness import BenchOptions, Outcome, interleave, medians
from deploy.demo_model import resolve_model
from protos.feature_layers import build_target_layer_ids
from target_service import fused, kernel_choice, linear, loader
from target_service.model import TargetModel
from target_service.packing import Extension, PackedStep, pack

BARS = {4: 1.8, 8: 2.3}
CONTEXT = 512
_PAGE_SIZE = 16
_NUM_TAPPED = 8


def step_of(rows: int, device: torch.device) -> PackedStep:
    """One request with 512 tokens in the cache: its anchor and rows - 1 proposals, all deciding."""
    pages = tuple(range(-(-(CONTEXT + rows) // _PAGE_SIZE)))
    return pack([Extension(tuple(range(10, 10 + rows)), CONTEXT, pages, rows)], _PAGE_SIZE, device)


def target_with(name: str, kernel: str) -> TargetModel:
    """The served model with a matrix kernel and 8 tapped layers."""
    loaded = loader.load(str(resolve_model(name)), "float32", "cpu")
    num_layers = int(loaded.model.config.num_hidden_layers)
    fused.install(loaded.model, kernel)
    tapped = build_target_layer_ids(num_layers, min(_NUM_TAPPED, num_layers))
    return TargetModel(loaded.model, tapped, -(-CONTEXT // _PAGE_SIZE) + 1, _PAGE_SIZE)


@torch.inference_mode()
def step_ms(model: TargetModel, rows: int, repeats: int) -> float:
    """Median milliseconds of a step."""
    step = step_of(rows, model.device)
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        model.forward(step)
        times.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times)


async def measure(options: BenchOptions) -> Outcome:
    """Every kernel that is exact for the model, with 1, 4 and 8 rows."""
    num_cycles, repeats = (10, 20) if options.full else (6, 8)
    torch.set_num_threads(THREADS)
    stock = loader.load(str(resolve_model(options.target)), "float32", "cpu").model
    kernels = [kernel for kernel in linear.KERNELS if not kernel_choice.refusal(kernel, stock)]
    del stock
    models = {kernel: target_with(options.target, kernel) for kernel in kernels}
    arms = {
        f"{kernel}, {rows} rows": partial(step_ms, model, rows, repeats)
        for kernel, model in models.items()
        for rows in (1, *BARS)
    }
    for model in models.values():
        step_ms(model, max(BARS), 1)
    runs = await interleave(arms_of(arms), num_cycles, options.say)
    ratios = ratios_of({arm: values.median for arm, values in medians(runs).items()}, kernels)
    records: list[dict[str, Any]] = [{**run, "unit": "ms", "threads": THREADS} for run in runs]
    unit = f"x the fastest one-row step, 8 rows (4 rows: {ratios[4]:.2f}x, bar {BARS[4]:g})"
    passed = all(ratios[rows] <= bar for rows, bar in BARS.items())
    return Outcome(ratios[8], unit, BARS[8], passed, records)


def ratios_of(step_times: dict[str, float], kernels: list[str]) -> dict[int, float]:
    """Cost of 4 and 8 rows with the kernel of the fastest one-row step, over that step.

    Args:
        step_times: by arm, any unit.
    """
    fastest = min(kernels, key=lambda kernel: step_times[f"{kernel}, 1 rows"])
    return {r: step_times[f"{fastest}, {r} rows"] / step_times[f"{fastest}, 1 rows"] for r in BARS}
