"""Thread layouts and kernels of the yardstick `speedup`: what is tried as plain decoding and as speculation.

Target and drafter take turns at one request, so both may have every core if idle threads sleep instead
of spinning (OMP_WAIT_POLICY=PASSIVE); else each has its own share of the cores.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from deploy.bench.verify_cost import step_ms, target_with
from deploy.local import StackOptions
from deploy.up import waiting_policy
from target_service import kernel_choice, linear, loader
from target_service.fingerprint import model_fingerprint

_REPEATS = 12


@dataclass(frozen=True)
class Layout:
    """One stack.

    Attributes:
        kernel: of the target's matrices; "auto" is what users get.
        has_drafter: False for a stack that only decodes plainly.
    """

    name: str
    target_threads: int
    draft_threads: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    kernel: str = "auto"
    has_drafter: bool = True

    def options(self, stack: StackOptions) -> StackOptions:
        """A stack laid out so."""
        return replace(
            stack,
            target_threads=self.target_threads,
            draft_threads=self.draft_threads,
            environment=self.environment,
            drafter=stack.drafter if self.has_drafter else None,
            target_flags=(*stack.target_flags, "--linear-kernel", self.kernel),
        )


@dataclass(frozen=True)
class Kernels:
    """Of one-row steps.

    Attributes:
        served: what "auto" is.
        step_ms: median milliseconds of a one-row step at context 512, by kernel and threads.
    """

    served: str
    step_ms: Mapping[str, Mapping[int, float]]

    @property
    def fastest(self) -> str:
        return min(self.step_ms, key=lambda kernel: min(self.step_ms[kernel].values()))


def layouts(cores: int, kernels: Kernels) -> list[Layout]:
    """Stacks to try: speculation in two layouts; plain decoding in both, and with whatever else may be its
    fastest."""
    share = max(cores - 1, 1)
    found = [Layout(f"{share}+1 threads", share)]
    if cores > 1:
        found.append(
            Layout(f"{cores}+{cores} threads, passive", cores, cores, waiting_policy(2 * cores, cores))
        )
        name = f"{cores} threads, {kernels.fastest}"
        found.append(Layout(name, cores, has_drafter=False, kernel=kernels.fastest))
    if kernels.fastest != kernels.served:
        name = f"{share} threads, {kernels.fastest}"
        found.append(Layout(name, share, has_drafter=False, kernel=kernels.fastest))
    return found


def measure_kernels(target: Path, threads: Sequence[int]) -> Kernels:
    """One-row steps of every kernel that is exact for the model, in this process."""
    before = torch.get_num_threads()
    stock = loader.load(str(target), "float32", "cpu").model
    names = [kernel for kernel in linear.KERNELS if not kernel_choice.refusal(kernel, stock)]
    served = kernel_choice.choose(kernel_choice.AUTO, stock, model_fingerprint(target), 1)
    del stock
    steps: dict[str, dict[int, float]] = {}
    try:
        for kernel in names:
            model = target_with(str(target), kernel)
            steps[kernel] = {}
            for count in threads:
                torch.set_num_threads(count)
                step_ms(model, 1, 2)
                steps[kernel][count] = step_ms(model, 1, _REPEATS)
    finally:
        torch.set_num_threads(before)
    return Kernels(served, steps)


def num_cores() -> int:
    return os.cpu_count() or 1
