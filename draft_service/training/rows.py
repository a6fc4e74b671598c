"""The small columns of all rows of some shards; rows of all sequences are numbered through.

Row r of position x knows the token at x + 1 (`labels[r]`). N rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from protos.shards import CapturedSequence, Shard

_BUCKETS = 10_000


@dataclass(frozen=True, eq=False)
class Rows:
    """Columns [N].

    Attributes:
        labels: int64, the text's next token.
        greedy: int64, the argmax of the target's law of the next token.
        log_normalisers: float32.
        rows_left: int64, rows of the same text from this one on, this one included.
        rows_before: int64, rows of the same text before this one.
        positions: int64, absolute, of the token whose features the row has.
        is_pivot: bool, the next token is a response token (an anchor) that another one follows.
        held_out: bool, of a prompt kept for evaluation.
    """

    labels: torch.Tensor
    greedy: torch.Tensor
    log_normalisers: torch.Tensor
    rows_left: torch.Tensor
    rows_before: torch.Tensor
    positions: torch.Tensor
    is_pivot: torch.Tensor
    held_out: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)


def is_held_out(prompt_ids: torch.Tensor, fraction: float) -> bool:
    """Whether a prompt is kept for evaluation: by its hash, so the same in every folder and order."""
    digest = hashlib.sha256(prompt_ids.to(torch.int32).contiguous().numpy().tobytes()).digest()
    return int.from_bytes(digest[:8], "little") % _BUCKETS < fraction * _BUCKETS


def read_rows(shards: Sequence[Shard], held_out_fraction: float) -> Rows:
    """The columns of all rows of the shards, in order."""
    parts = [
        _of_sequence(shard.sequence(index), held_out_fraction)
        for shard in shards
        for index in range(len(shard))
    ]
    return Rows(*(torch.cat([getattr(part, name) for part in parts]) for name in Rows.__dataclass_fields__))


def _of_sequence(sequence: CapturedSequence, held_out_fraction: float) -> Rows:
    count = len(sequence.features)
    positions = torch.arange(sequence.first_position, sequence.first_position + count)
    rows_left = torch.arange(count, 0, -1)
    held_out = is_held_out(sequence.token_ids[: sequence.prompt_length], held_out_fraction)
    return Rows(
        labels=sequence.token_ids[sequence.first_position + 1 :].to(torch.int64),
        greedy=sequence.greedy_tokens.to(torch.int64),
        log_normalisers=sequence.log_normalisers,
        rows_left=rows_left,
        rows_before=torch.arange(count),
        positions=positions,
        is_pivot=(positions >= sequence.prompt_length - 1) & (rows_left > 1),
        held_out=torch.full((count,), held_out),
    )
