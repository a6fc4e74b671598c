"""Counts of agreement, teacher-forced; a training metric, never called tau (walk.py measures that)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from draft_service.training.ranks import Ranks


@dataclass(frozen=True, eq=False)
class Agreement:
    """Sums over anchors, for each position j = 1..K.

    Attributes:
        agreed: [K] the drafter's argmax is the target's.
        overlap: [K] sum of min(p, q) over the vocabulary, the chance that a draw from q is accepted.
        counted: [K] anchors whose text reaches the position.
    """

    agreed: torch.Tensor
    overlap: torch.Tensor
    counted: torch.Tensor

    @classmethod
    def nothing(cls, num_proposals: int) -> Agreement:
        zeros = torch.zeros(num_proposals, dtype=torch.float64)
        return cls(zeros, zeros, zeros)

    def plus(self, other: Agreement) -> Agreement:
        return Agreement(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))

    def reduced(self, ranks: Ranks) -> Agreement:
        """Summed over all processes."""
        total = ranks.total(torch.stack([self.agreed, self.overlap, self.counted]))
        return Agreement(*total)

    def rates(self) -> list[float | None]:
        """Share of agreed positions, for each position; None where nothing was counted."""
        return _shares(self.agreed, self.counted)

    def overlaps(self) -> list[float | None]:
        """Mean overlap, likewise."""
        return _shares(self.overlap, self.counted)


@torch.no_grad()
def agreement(
    log_q: torch.Tensor,  # [n, k, V_d]
    log_p: torch.Tensor,  # [n, k, V_d]
    greedy: torch.Tensor,  # [n, k] columns, or -1
    valid: torch.Tensor,  # [n, k]
    num_proposals: int,
) -> Agreement:
    """Counts of one batch, zero for positions after k."""
    agreed = (log_q.argmax(dim=-1) == greedy) & valid
    overlap = torch.minimum(log_q, log_p).exp().sum(dim=-1) * valid
    return Agreement(
        *(
            _padded(values.to("cpu", torch.float64).sum(dim=0), num_proposals)
            for values in (agreed, overlap, valid)
        )
    )


def _shares(sums: torch.Tensor, counted: torch.Tensor) -> list[float | None]:
    pairs = zip(sums.tolist(), counted.tolist(), strict=True)
    return [value / count if count else None for value, count in pairs]


def _padded(values: torch.Tensor, size: int) -> torch.Tensor:
    return torch.cat([values, values.new_zeros(size - len(values))])
