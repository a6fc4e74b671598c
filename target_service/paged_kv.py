"""The KV tensors, in pages. A slot is `page * page_size + offset`.

Shapes: P pages, S page size, H key/value heads, C head width, N rows, T context length.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class KVShape:
    """Geometry of one model's cache."""

    num_layers: int
    num_heads: int
    head_dim: int
    dtype: torch.dtype

    def bytes_per_token(self) -> int:
        return 2 * self.num_layers * self.num_heads * self.head_dim * self.dtype.itemsize


class PagedKV:
    """Keys and values of all layers, allocated once.

    Args:
        shape: the model's geometry.
        num_pages: P.
        page_size: S.
        device: where the tensors live.
    """

    def __init__(self, shape: KVShape, num_pages: int, page_size: int, device: torch.device) -> None:
        self.shape = shape
        self.page_size = page_size
        # Heads first: the rows of one head follow one another, so a context of contiguous pages is
        # read as it lies.
        size = (shape.num_layers, shape.num_heads, num_pages * page_size, shape.head_dim)
        # Written, not only reserved: the system gives the memory now or never.
        self.keys = torch.empty(size, dtype=shape.dtype, device=device).zero_()  # [L, H, P*S, C]
        self.values = torch.empty(size, dtype=shape.dtype, device=device).zero_()

    def write(
        self,
        layer: int,
        slots: torch.Tensor,  # [N]
        keys: torch.Tensor,  # [H, N, C]
        values: torch.Tensor,  # [H, N, C]
    ) -> None:
        """Stores the rows of one layer. Slots of one call are distinct."""
        self.keys[layer].index_copy_(1, slots, keys)
        self.values[layer].index_copy_(1, slots, values)

    def read(
        self, layer: int, context: tuple[slice, ...] | torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [H, T, C] of a context; one run of pages copies nothing."""
        keys, values = self.keys[layer], self.values[layer]
        if isinstance(context, torch.Tensor):
            return keys.index_select(1, context), values.index_select(1, context)
        if len(context) == 1:
            return keys[:, context[0]], values[:, context[0]]
        runs = [(keys[:, run], values[:, run]) for run in context]
        return torch.cat([k for k, _ in runs], dim=1), torch.cat([v for _, v in runs], dim=1)

    def copy_page(self, source: int, destination: int) -> None:
        """Copies one page's keys and values, all layers."""
        rows, target = self._rows(source), self._rows(destination)
        self.keys[:, :, target] = self.keys[:, :, rows]
        self.values[:, :, target] = self.values[:, :, rows]

    def page_bytes(self, page: int) -> bytes:
        """All layers' content of one page, for tests that watch shared pages."""
        rows = self._rows(page)
        both = torch.stack([self.keys[:, :, rows], self.values[:, :, rows]]).contiguous()
        return both.reshape(-1).view(torch.uint8).cpu().numpy().tobytes()

    def _rows(self, page: int) -> slice:
        return slice(page * self.page_size, (page + 1) * self.page_size)
