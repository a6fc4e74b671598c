"""Pages and attention of flash-attn's paged kernels, behind an explicit flag until a run on a GPU
against `sdpa` is committed (deploy/gpu/check.sh). One call attends all sequences of a step.

Shapes: P pages, S page size, A query heads, H key/value heads, C head width, N rows, B sequences.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from protos.errors import InvalidRequest
from target_service.packing import PackedStep
from target_service.paged_kv import KVShape

KERNEL_NAME = "dlite_paged_flash"
PAGE_MULTIPLE = 256  # of the kernel's pages
Kernel = Callable[..., torch.Tensor]


@dataclass(frozen=True, eq=False)
class FlashTables:
    """Where the sequences of a step lie, as the kernel wants it; made once a step."""

    query_starts: torch.Tensor  # [B + 1] int32
    key_starts: torch.Tensor  # [B + 1] int32
    pages: torch.Tensor  # [B, most pages] int32, padded with 0
    longest_query: int
    longest_context: int

    @staticmethod
    def of(step: PackedStep, device: torch.device) -> FlashTables:
        rows = [span.num_rows for span in step.spans]
        lengths = [span.length for span in step.spans]
        most = max(len(span.pages) for span in step.spans)
        pages = [[*span.pages, *[0] * (most - len(span.pages))] for span in step.spans]

        def table(values: Any) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int32, device=device)

        starts, key_starts = (list(itertools.accumulate(n, initial=0)) for n in (rows, lengths))
        return FlashTables(table(starts), table(key_starts), table(pages), max(rows), max(lengths))


class FlashKV:
    """Keys and values with tokens first, the kernel's layout.

    Args:
        shape: the model's geometry.
        num_pages: P.
        page_size: S, a multiple of 256.
        device: where the tensors live.
        kernel: `flash_attn_varlen_func` or one with its arguments.
    """

    def __init__(
        self, shape: KVShape, num_pages: int, page_size: int, device: torch.device, kernel: Kernel
    ) -> None:
        self.shape = shape
        self.page_size = page_size
        self._kernel = kernel
        size = (shape.num_layers, num_pages, page_size, shape.num_heads, shape.head_dim)
        self.keys = torch.empty(size, dtype=shape.dtype, device=device).zero_()  # [L, P, S, H, C]
        self.values = torch.empty(size, dtype=shape.dtype, device=device).zero_()

    def write(self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Stores rows [H, N, C] of one layer at slots [N]."""
        for cache, rows in ((self.keys, keys), (self.values, values)):
            cache[layer].flatten(0, 1).index_copy_(0, slots, rows.transpose(0, 1))

    def attend(
        self,
        layer: int,
        queries: torch.Tensor,  # [A, N, C]
        tables: FlashTables,
        scaling: float | None,
    ) -> torch.Tensor:
        """Each row sees its own sequence up to itself; returns [N, A, C]."""
        return self._kernel(
            queries.transpose(0, 1),
            self.keys[layer],
            self.values[layer],
            cu_seqlens_q=tables.query_starts,
            cu_seqlens_k=tables.key_starts,
            max_seqlen_q=tables.longest_query,
            max_seqlen_k=tables.longest_context,
            softmax_scale=scaling,
            causal=True,
            block_table=tables.pages,
        )

    def copy_page(self, source: int, destination: int) -> None:
        """Copies one page's keys and values, all layers."""
        self.keys[:, destination] = self.keys[:, source]
        self.values[:, destination] = self.values[:, source]


def load_kernel(page_size: int, dtype: torch.dtype, device: torch.device) -> Kernel:
    """The package's kernel.

    Raises:
        InvalidRequest: no such package here, or it does not compute with these settings.
    """
    if importlib.util.find_spec("flash_attn") is None:
        raise _refusal("the package flash-attn is not installed; use sdpa")
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        raise _refusal(f"bfloat16 on a GPU only, not {str(dtype).removeprefix('torch.')} on {device.type}")
    if page_size % PAGE_MULTIPLE:
        raise _refusal(f"page_size {page_size} is no multiple of {PAGE_MULTIPLE}; set page_size: 256")
    kernel: Kernel = importlib.import_module("flash_attn").flash_attn_varlen_func
    return kernel


def _refusal(reason: str) -> InvalidRequest:
    return InvalidRequest(f"attention flash: {reason}", field="attention")
