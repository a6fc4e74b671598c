"""Processes that share a batch: each takes every size-th group, and gradients are summed."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch import distributed, nn


@dataclass(frozen=True)
class Ranks:
    """This process among those of a run; alone by default."""

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    @torch.no_grad()
    def sum_gradients(self, model: nn.Module) -> None:
        """Adds up the gradients of all processes, in one message."""
        if self.size == 1:
            return
        gradients = [value.grad for value in model.parameters() if value.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        distributed.all_reduce(flat)
        for gradient, summed in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(summed.view_as(gradient))

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """Sums a small tensor over all processes."""
        if self.size > 1:
            distributed.all_reduce(values)
        return values


def join_ranks(device: str) -> Ranks:
    """The processes that `torchrun` started; alone where it did not."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return Ranks()
    if not distributed.is_initialized():
        distributed.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    return Ranks(distributed.get_rank(), size)
