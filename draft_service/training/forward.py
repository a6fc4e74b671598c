"""The drafter over a batch of anchors, teacher-forced; shared by training and its evaluation.

n anchors, k proposals, V_d drafter vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from draft_service.model import DraftModel
from draft_service.training.data import AnchorBatch


@dataclass(frozen=True, eq=False)
class Frozen:
    """What of the target a forward pass needs, on the device to compute on.

    Attributes:
        embedding: [V, D].
        lm_head: [V_d, D], the rows of the drafter's vocabulary.
        columns: [V] column of each target id, or -1.
    """

    embedding: torch.Tensor
    lm_head: torch.Tensor
    columns: torch.Tensor


@dataclass(frozen=True, eq=False)
class Laws:
    """Of n anchors and k proposals: log laws [n, k, V_d] and the target's argmax as a column [n, k]."""

    log_q: torch.Tensor
    log_p: torch.Tensor
    greedy: torch.Tensor


def drafter_log_law(model: DraftModel, embedding: torch.Tensor, batch: AnchorBatch) -> torch.Tensor:
    """log q [n, k, V_d] float32 with the true tokens before each position."""
    count, width = batch.tokens.shape
    num_masks = width - 1
    masks = batch.tokens.new_full((count, num_masks), model.config.mask_token_id)
    queries = embedding[torch.cat([batch.tokens[:, :1], masks], dim=1)]  # [n, 1 + k, D]
    hidden = model.hidden(model.fuse(batch.features), queries, [1] * count, [num_masks] * count)
    head = model.sequential_head
    logits = head.block_logits(hidden, batch.tokens[:, :-1], head.zero_state(count))
    return torch.log_softmax(logits.to(torch.float32), dim=-1)


@torch.no_grad()
def target_log_law(lm_head: torch.Tensor, batch: AnchorBatch) -> torch.Tensor:
    """log p [n, k, V_d] float32, normalised over the whole vocabulary of the target."""
    return batch.hidden @ lm_head.T - batch.log_normalisers[..., None]


@contextmanager
def autocast(device: torch.device, kind: Literal["none", "bfloat16"]) -> Iterator[None]:
    """The products of a net in the recipe's type."""
    # A block has some tens of rows: the plain kernel is faster than the tiled ones, forward and backward.
    with (
        sdpa_kernel(SDPBackend.MATH),
        torch.autocast(device.type, dtype=torch.bfloat16, enabled=kind == "bfloat16"),
    ):
        yield


def laws(log_q: torch.Tensor, frozen: Frozen, batch: AnchorBatch) -> Laws:
    """The net's law and the target's, in float32."""
    return Laws(log_q, target_log_law(frozen.lm_head, batch), frozen.columns[batch.greedy])
