"""Paged attention behind transformers' attention interface.

Keyword arguments given to `model.model(...)` reach the registered function, so a step carries its
own context and nothing is global. The registered mask function returns None: our spans say who
sees whom.

Shapes: N rows of all sequences, A query heads, H key/value heads, C head width, T context.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from target_service.flash_kv import FlashKV, FlashTables
from target_service.packing import PackedStep
from target_service.paged_kv import PagedKV
from target_service.run_attention import Piece, attend_to_pieces, pieces_of

KERNEL_NAME = "dlite_paged_sdpa"


@dataclass(frozen=True, eq=False)
class StepContext:
    """What the attention of one step needs beyond its tensors."""

    step: PackedStep
    kv: PagedKV | FlashKV
    biases: tuple[torch.Tensor | None, ...]  # of each span, 0 or -inf: its mask as torch's kernel adds it
    pieces: tuple[tuple[Piece, ...], ...]  # of each span: see `run_attention`
    tables: FlashTables | None  # with FlashKV

    @staticmethod
    def of(step: PackedStep, kv: PagedKV | FlashKV) -> StepContext:
        """Makes what all layers share, once."""
        if isinstance(kv, FlashKV):
            return StepContext(step, kv, (), (), FlashTables.of(step, kv.keys.device))
        biases = tuple(_bias(span.mask, kv.shape.dtype) for span in step.spans)
        is_cpu = kv.keys.device.type == "cpu"
        spans = zip(step.spans, biases, strict=True)
        pieces = tuple(pieces_of(span, bias) if is_cpu else () for span, bias in spans)
        return StepContext(step, kv, biases, pieces, None)


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,  # [1, A, N, C]
    key: torch.Tensor,  # [1, H, N, C]
    value: torch.Tensor,  # [1, H, N, C]
    attention_mask: torch.Tensor | None,
    *,
    paged: StepContext,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Stores this step's keys and values, then attends each sequence to its own pages.

    Returns:
        ([1, N, A, C], None): transformers' order of dimensions, no weights.
    """
    layer = module.layer_idx
    assert isinstance(layer, int)
    outputs = attend(layer, (query[0], key[0], value[0]), paged, scaling)
    return outputs[None], None


def attend(
    layer: int,
    heads: tuple[torch.Tensor, torch.Tensor, torch.Tensor],  # [A, N, C], [H, N, C], [H, N, C]
    paged: StepContext,
    scaling: float | None,
) -> torch.Tensor:
    """Stores the step's keys and values of one layer, then attends each sequence to its own pages.

    Args:
        heads: queries, keys and values of the step's rows.

    Returns:
        [N, A, C], not contiguous.
    """
    queries, keys, values = heads
    step, kv = paged.step, paged.kv
    kv.write(layer, step.slots, keys, values)
    if isinstance(kv, FlashKV):
        assert paged.tables is not None
        return kv.attend(layer, queries, paged.tables, scaling)
    outputs = []
    for span, bias, pieces in zip(step.spans, paged.biases, paged.pieces, strict=True):
        own = queries[None, :, span.first_row : span.first_row + span.num_rows]
        if pieces:
            outputs.append(attend_to_pieces(layer, own, kv, pieces, scaling)[0])
            continue
        past_keys, past_values = kv.read(layer, span.context)
        outputs.append(
            F.scaled_dot_product_attention(
                own,
                past_keys[None],
                past_values[None],
                attn_mask=bias,
                is_causal=span.is_causal,
                scale=scaling,
                enable_gqa=True,
            )[0]
        )
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)  # [A, N, C]
    return joined.transpose(0, 1)


def _bias(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    if mask is None:
        return None
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -torch.inf)


def no_mask(*_: Any, **__: Any) -> None:
    """The mask function: spans carry the masks."""


def register() -> None:
    """Makes the kernel known to transformers; harmless when repeated."""
    AttentionInterface.register(KERNEL_NAME, paged_attention)
    AttentionMaskInterface.register(KERNEL_NAME, no_mask)
