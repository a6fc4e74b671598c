"""Which matrix kernel a target uses: told by its settings, or measured once and remembered.

A measurement belongs to a model, a machine, torch's version and a number of threads. It times the
model's own matrices with the row counts of plain decoding and of verification, on enough of them
that they do not stay in the processor's cache.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel

from protos.errors import InvalidRequest
from target_service import linear
from target_service.fingerprint import cache_dir

AUTO = "auto"
_ROWS = (1, 4, 8)
_REPEATS = 5
# Matrices of about this size are measured: several times a last-level cache, seconds to pack.
_MEASURED_BYTES = 192 << 20
_CACHE_FILE = "linear_kernels.json"

Measure = Callable[[PreTrainedModel, list[str]], dict[str, float]]

log = logging.getLogger("dlite.target")


@dataclass(frozen=True)
class Machine:
    """What a measurement depends on beside the model."""

    cpu: str
    torch_version: str
    threads: int

    @staticmethod
    def here(threads: int) -> Machine:
        return Machine(_cpu_name(), torch.__version__, threads)

    @property
    def key(self) -> str:
        return f"{self.cpu}, torch {self.torch_version}, {self.threads} threads"


def choose(
    wanted: str,
    model: PreTrainedModel,
    fingerprint: str,
    threads: int,
    measure: Measure | None = None,
) -> str:
    """The kernel to install.

    Args:
        wanted: a kernel of `linear.KERNELS`, or `auto`: the fastest that is exact for this model.
        fingerprint: of the model; the choice is stored under it in the user's cache.
        threads: compute threads of the engine.
        measure: seconds of each kernel; `measure_kernels` when None.

    Raises:
        InvalidRequest: the wanted kernel is unknown, not for this machine, or not exact for the model.
    """
    if wanted != AUTO:
        if reason := refusal(wanted, model):
            raise InvalidRequest(f"linear kernel {wanted}: {reason}", field="linear_kernel")
        return wanted
    if model.device.type != "cpu" or model.dtype != torch.float32:
        return linear.TORCH
    machine = Machine.here(threads)
    path = cache_dir() / _CACHE_FILE
    known = _read(path)
    stored = known.get(fingerprint, {}).get(machine.key, {}).get("kernel")
    # Exactness needs no second look: the fingerprint covers the weights, and packing checks again.
    if isinstance(stored, str) and not linear.unavailable(stored, model.dtype, model.device):
        return stored
    seconds = _measured(measure or measure_kernels, model, threads)
    kernel = min(seconds, key=seconds.__getitem__)
    log.info("linear kernel %s: %s", kernel, {k: f"{1e3 * s:.1f} ms" for k, s in seconds.items()})
    known.setdefault(fingerprint, {})[machine.key] = {"kernel": kernel, "seconds": seconds}
    _write(path, known)
    return kernel


def _measured(measure: Measure, model: PreTrainedModel, threads: int) -> dict[str, float]:
    kernels = [kernel for kernel in linear.KERNELS if not refusal(kernel, model)]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return measure(model, kernels)
    finally:
        torch.set_num_threads(before)


def refusal(kernel: str, model: PreTrainedModel) -> str:
    """Why a kernel is not for this model here; empty when it is."""
    reason = linear.unavailable(kernel, model.dtype, model.device)
    if not reason and kernel == linear.FBGEMM_FP16 and (name := linear.inexact_in_half(model)):
        return f"{name} is not exact in float16; use {linear.ONEDNN} or {linear.TORCH_FUSED}"
    return reason


@torch.inference_mode()
def measure_kernels(model: PreTrainedModel, kernels: list[str]) -> dict[str, float]:
    """Seconds of one step of 1, 4 and 8 rows together, by kernel, over a part of the matrices.

    `torch` is left out: `torch_fused` does the same products.
    """
    weights = _sample(model)
    inputs = {(n, w.shape[1]): torch.randn(n, w.shape[1]) for n in _ROWS for w in weights}
    seconds: dict[str, float] = {}
    for kernel in kernels:
        if kernel == linear.TORCH:
            continue
        modules = [(linear.pack(kernel, weight, None), weight.shape[1]) for weight in weights]
        seconds[kernel] = sum(
            min(_time(modules, {w: inputs[n, w] for _, w in modules}) for _ in range(_REPEATS)) for n in _ROWS
        )
    return seconds


def _sample(model: PreTrainedModel) -> list[torch.Tensor]:
    """Matrices from the front of the model up to the measured size; one at least."""
    weights: list[torch.Tensor] = []
    num_bytes = 0
    for module in model.modules():
        if isinstance(module, nn.Linear) and num_bytes < _MEASURED_BYTES:
            weights.append(module.weight)
            num_bytes += module.weight.nbytes
    return weights


def _time(modules: list[tuple[nn.Module, int]], inputs: dict[int, torch.Tensor]) -> float:
    started = time.perf_counter()
    for module, width in modules:
        module(inputs[width])
    return time.perf_counter() - started


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _read(path: Path) -> dict[str, dict[str, dict[str, object]]]:
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}  # a choice that cannot be read is measured again
    return document if isinstance(document, dict) else {}


def _write(path: Path, document: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(document, indent=1))
    temporary.replace(path)
