"""Parity, cost of verification and speed of a target on one GPU, in one command of minutes.

`python -m deploy.gpu.check` prints one JSON object on stdout, progress on stderr, and ends with 1
when parity fails. `--device cpu --sizes tiny` runs all of it on a CPU, to test the script.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import typer

from deploy.bench.harness import commit, machine
from deploy.gpu import speed
from deploy.gpu.models import SIZES, Size, random_model, weight_bytes
from deploy.gpu.parity import check_float32, flash_difference, tapped_layers
from target_service import fused, linear
from target_service.flash_kv import load_kernel
from target_service.model import TargetModel

_CONTEXT = 512
_PAGE_SIZE = 16


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Args:
        batches: requests in a step.
        tokens: decoded by each request of a run.
        repeats: of a timed step.
    """

    dtype: torch.dtype
    batches: list[int]
    tokens: int
    repeats: int


def plan_for(device: torch.device) -> Plan:
    if device.type == "cuda":
        return Plan(torch.bfloat16, [1, 4, 16, 64], 64, 10)
    return Plan(torch.float32, [1, 2], 4, 1)


def parity(size: Size, device: torch.device) -> dict[str, Any]:
    """float32 against the library for both kernels, and flash-attn against sdpa where it is installed."""
    result: dict[str, Any] = {
        "float32": [check_float32(size, device, kernel) for kernel in (linear.TORCH, linear.TORCH_FUSED)]
    }
    checks = list(result["float32"])
    if device.type == "cuda" and importlib.util.find_spec("flash_attn") is not None:
        kernel = load_kernel(256, torch.bfloat16, device)
        result["flash"] = flash_difference(size, random_model(size, torch.bfloat16, device), kernel)
        checks.append(result["flash"])
    return {**result, "passed": all(check["passed"] for check in checks)}


@torch.inference_mode()
def speeds(size: Size, device: torch.device, plan: Plan) -> dict[str, Any]:
    """Step times with both kernels, the share of the features, decoding, and the library."""
    pages = max(plan.batches) * (-(-(_CONTEXT + 8) // _PAGE_SIZE))
    result: dict[str, Any] = {}
    for kernel in (linear.TORCH, linear.TORCH_FUSED):
        model = random_model(size, plan.dtype, device)
        fused.install(model, kernel)
        plain = speed.step_times(
            TargetModel(model, (), pages, _PAGE_SIZE), _CONTEXT, plan.batches, plan.repeats
        )
        target = TargetModel(model, tapped_layers(size), pages, _PAGE_SIZE)
        tapped = speed.step_times(target, _CONTEXT, plan.batches, plan.repeats)
        result[kernel] = {
            "verify_cost": tapped,
            "taps_on_over_off": [a["ms_8"] / b["ms_8"] for a, b in zip(tapped, plain, strict=True)],
            "run": speed.decoding(target, pages, plan.batches, plan.tokens),
            "weight_bytes": weight_bytes(model),
        }
        del model, target
    rate = speed.bandwidth(device, 1 << 30 if device.type == "cuda" else 1 << 24)
    for kernel in (linear.TORCH, linear.TORCH_FUSED):
        part = result[kernel]
        floor_ms = 1e3 * part["weight_bytes"] / rate
        part["t1_over_weight_read"] = part["verify_cost"][0]["ms_1"] / floor_ms
    result["bytes_per_second"] = rate
    return result


def stock_speed(size: Size, device: torch.device, plan: Plan) -> dict[str, Any]:
    """The library's own best decoding, batch 1."""
    return {"tokens_per_second": speed.library(random_model(size, plan.dtype, device), plan.tokens)}


def run_sections(names: list[str], device: torch.device, budget_seconds: float) -> dict[str, Any]:
    """All sections of all sizes in order of weight; those after the budget are named as skipped."""
    plan = plan_for(device)
    started = time.monotonic()
    sections: list[tuple[str, str, Callable[[], dict[str, Any]]]] = []
    for name in names:
        size = SIZES[name]
        sections.append((name, "parity", lambda size=size: parity(size, device)))  # type: ignore[misc]
        sections.append((name, "speed", lambda size=size: speeds(size, device, plan)))  # type: ignore[misc]
    for name in names:
        size = SIZES[name]
        sections.append((name, "library", lambda size=size: stock_speed(size, device, plan)))  # type: ignore[misc]
    results: dict[str, Any] = {name: {} for name in names}
    for name, section, measure in sections:
        elapsed = time.monotonic() - started
        if elapsed > budget_seconds:
            results[name][section] = "skipped: no time left"
            continue
        print(f"{elapsed:.0f} s: {name} {section}", file=sys.stderr)
        results[name][section] = measure()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return results


def main(
    device: Annotated[str, typer.Option(help="torch device")] = "cuda",
    sizes: Annotated[str, typer.Option(help=f"of {', '.join(SIZES)}, with commas")] = "tiny,small,8b",
    seconds: Annotated[float, typer.Option(help="no section starts after this")] = 360.0,
) -> None:
    """Checks a device; the 8b model's float32 parity wants 40 GB."""
    where = torch.device(device)
    if where.type == "cuda" and not torch.cuda.is_available():
        typer.echo("no GPU here; --device cpu --sizes tiny tests the script", err=True)
        raise typer.Exit(2)
    names = sizes.split(",")
    if unknown := [name for name in names if name not in SIZES]:
        typer.echo(f"no size {unknown[0]!r}; there are {', '.join(SIZES)}", err=True)
        raise typer.Exit(2)
    results = run_sections(names, where, seconds)
    gpu = torch.cuda.get_device_name(where) if where.type == "cuda" else None
    passed = all(part["parity"]["passed"] for part in results.values() if isinstance(part["parity"], dict))
    print(
        json.dumps(
            {"passed": passed, "gpu": gpu, "results": results, "machine": machine(), "commit": commit()}
        )
    )
    raise typer.Exit(0 if passed else 1)


if __name__ == "__main__":
    typer.run(main)
