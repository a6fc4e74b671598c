"""Times on a device: steps of 1, 4 and 8 rows at several batches, plain decoding, the library."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from deploy.bench.engine_runs import decode, generate, make_job
from target_service.engine import Engine
from target_service.limits import EngineLimits
from target_service.model import TargetModel
from target_service.packing import Extension, pack

ROWS = (1, 4, 8)


def timed(device: torch.device, run: Callable[[], object], repeats: int) -> float:
    """Median milliseconds, after one run that does not count."""
    times = []
    for _ in range(repeats + 1):
        _wait(device)
        started = time.perf_counter()
        run()
        _wait(device)
        times.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times[1:])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def bandwidth(device: torch.device, num_bytes: int) -> float:
    """Bytes a second of reading and writing a buffer."""
    source = torch.ones(num_bytes // 4, device=device)
    target = torch.empty_like(source)
    return 2 * num_bytes / (timed(device, lambda: target.copy_(source), 5) / 1e3)


@torch.inference_mode()
def step_times(target: TargetModel, context: int, batches: list[int], repeats: int) -> list[dict[str, Any]]:
    """Milliseconds of a step by batch and rows a request, and the ratios to one row."""
    size = target.kv.page_size
    pages_each = -(-(context + max(ROWS)) // size)
    results = []
    for batch in batches:
        row: dict[str, Any] = {"batch": batch}
        for rows in ROWS:
            extensions = [
                Extension((5,) * rows, context, tuple(range(i * pages_each, (i + 1) * pages_each)), rows)
                for i in range(batch)
            ]

            def step(extensions: list[Extension] = extensions) -> object:
                return target.forward(pack(extensions, size, target.device))

            row[f"ms_{rows}"] = timed(target.device, step, repeats)
        row |= {f"ratio_{rows}": row[f"ms_{rows}"] / row["ms_1"] for rows in ROWS[1:]}
        results.append(row)
    return results


def decoding(target: TargetModel, num_pages: int, batches: list[int], tokens: int) -> list[dict[str, Any]]:
    """tokens/s of `Run` at several concurrencies, prompts of 64 tokens."""
    limits = EngineLimits(
        page_size=target.kv.page_size,
        num_pages=num_pages,
        prefill_rows=512,
        max_context=1024,
        max_verify_block_size=16,
        eos_ids=frozenset(),
        uses_prefix_cache=False,
    )
    results = []
    for batch in batches:
        engine = Engine(target, limits)
        jobs = [make_job(n, 64, tokens, target.vocab_size) for n in range(batch)]
        decode(engine, jobs)
        results.append({"concurrency": batch, "tokens_per_second": decode(engine, jobs)})
    return results


def library(model: Any, tokens: int) -> float:
    """tokens/s of the library's `generate`, batch 1, with a static cache (compiled on a GPU)."""
    model.generation_config.cache_implementation = "static"
    jobs = [make_job(0, 64, tokens, int(model.config.vocab_size))]
    generate(model, jobs)
    return generate(model, jobs)
