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

from target_service.packing import PackedStep
from target_service.paged_kv import PagedKV

KERNEL_NAME = "dlite_paged_sdpa"


@dataclass(frozen=True, eq=False)
class StepContext:
    """What the attention of one step needs beyond its tensors."""

    step: PackedStep
    kv: PagedKV


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
    step, kv = paged.step, paged.kv
    kv.write(layer, step.slots, key[0].transpose(0, 1), value[0].transpose(0, 1))
    outputs = []
    for span in step.spans:
        keys, values = kv.read(layer, span.context)
        rows = query[:, :, span.first_row : span.first_row + span.num_rows]
        outputs.append(
            F.scaled_dot_product_attention(
                rows,
                keys.transpose(0, 1)[None],
                values.transpose(0, 1)[None],
                attn_mask=span.mask,
                is_causal=span.is_causal,
                scale=scaling,
                enable_gqa=True,
            )
        )
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)
    return joined.transpose(1, 2), None


def no_mask(*_: Any, **__: Any) -> None:
    """The mask function: spans carry the masks."""


def register() -> None:
    """Makes the kernel known to transformers; harmless when repeated."""
    AttentionInterface.register(KERNEL_NAME, paged_attention)
    AttentionMaskInterface.register(KERNEL_NAME, no_mask)
