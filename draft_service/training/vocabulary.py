"""The drafter's reduced vocabulary: which target ids it can propose. V target ids, V_d of them kept."""

from __future__ import annotations

from collections.abc import Collection

import torch

from draft_service.training.losses import NO_COLUMN


def choose_vocabulary(
    labels: torch.Tensor,  # [A] target ids
    vocab_size: int,
    size: int,
    always: Collection[int] = (),
) -> torch.Tensor:
    """The most frequent ids, ties to the lower id, `always` among them; [V_d] int64, ascending.

    Ascending, so that a tie between columns goes to the lower target id, as it does at the target.
    """
    counts = torch.bincount(labels, minlength=vocab_size)
    counts[list(always)] = counts.max() + 1
    order = torch.argsort(counts, descending=True, stable=True)
    return order[:size].sort().values


def columns_of(token_ids: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """[V] the column of each target id, NO_COLUMN where the drafter lacks it."""
    columns = torch.full((vocab_size,), NO_COLUMN, dtype=torch.int64)
    columns[token_ids] = torch.arange(len(token_ids))
    return columns
