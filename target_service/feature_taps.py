"""Forward hooks that keep the tapped layers' output for the deciding rows of one step.

On a GPU each layer's rows start for pinned host memory as soon as they exist, on a stream of their
own, while the layers above compute; the head still runs when the last of them have arrived.

Shapes: R deciding rows, m tapped layers, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel


class Rows(Protocol):
    """Where kept rows go."""

    def keep(self, rows: torch.Tensor) -> torch.Tensor:
        """Takes [R, D] of one layer; the result is valid after `wait`."""
        ...

    def wait(self) -> None:
        """Returns when everything kept is readable by the host."""
        ...


class RowsInPlace:
    """The CPU's: rows are where they are wanted."""

    def keep(self, rows: torch.Tensor) -> torch.Tensor:
        return rows

    def wait(self) -> None:
        """Nothing is on its way."""


class RowsToHost:
    """The GPU's: asynchronous copies to pinned memory.

    Args:
        device: a CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)

    def keep(self, rows: torch.Tensor) -> torch.Tensor:
        host = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
        self._stream.wait_stream(torch.cuda.current_stream(rows.device))
        with torch.cuda.stream(self._stream):
            host.copy_(rows, non_blocking=True)
        rows.record_stream(self._stream)  # its memory is not reused before the copy has ended
        return host

    def wait(self) -> None:
        self._stream.synchronize()


class FeatureTaps:
    """Hooks on a model; one step at a time.

    Args:
        model: whose modules are in place already (a module swapped later has no hook).
        layer_ids: the m feature ids, ascending; the last layer's is the state after the final norm.
        rows: where kept rows go; `RowsToHost` on a GPU.
    """

    def __init__(self, model: PreTrainedModel, layer_ids: Sequence[int], rows: Rows | None = None) -> None:
        self.layer_ids = tuple(layer_ids)
        on_gpu = model.device.type == "cuda"
        self._rows: Rows = rows or (RowsToHost(model.device) if on_gpu else RowsInPlace())
        self._wanted: torch.Tensor | None = None
        self._kept: dict[int, torch.Tensor] = {}
        decoder = model.model
        last = len(decoder.layers) - 1
        for layer_id in self.layer_ids:
            module = decoder.norm if layer_id == last else decoder.layers[layer_id]
            module.register_forward_hook(self._hook(layer_id))

    def _hook(self, layer_id: int) -> Callable[..., None]:
        def keep(_module: torch.nn.Module, _inputs: Any, output: Any) -> None:
            if self._wanted is not None:
                hidden = output[0] if isinstance(output, tuple) else output  # [1, N, D]
                self._kept[layer_id] = self._rows.keep(hidden[0].index_select(0, self._wanted))

        return keep

    def start(self, rows: torch.Tensor) -> None:
        """Begins a step: keep these rows."""
        self._wanted = rows
        self._kept.clear()

    def take(self) -> torch.Tensor:
        """Ends the step; returns [R, m, D], on the CPU ([R, 0, 0] without tapped layers)."""
        self._rows.wait()
        assert self._wanted is not None
        kept = [self._kept[layer_id] for layer_id in self.layer_ids]
        nothing = torch.empty(len(self._wanted), 0, 0)
        self._wanted = None
        self._kept.clear()
        return torch.stack(kept, dim=1) if kept else nothing
