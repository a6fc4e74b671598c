"""Acceptance over many requests, from the ledgers in their answers. Pure.

A block counts up to the end of its text: the ledgers are cut there (see `coordinator.ledger`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from coordinator.loadtest.samples import Sample


@dataclass(frozen=True)
class Acceptance:
    """What proposals did. Rates are None without data.

    Args:
        num_drafts: rounds with proposals; num_verified, num_accepted: proposals.
        num_drafted: proposals made, those included that were never verified.
        num_kept: tokens that rounds with proposals committed, the target's own included.
        verified, accepted: proposals at position 1, 2, ..
    """

    num_rounds: int
    num_drafts: int
    num_drafted: int
    num_verified: int
    num_accepted: int
    num_kept: int
    verified: tuple[int, ...]
    accepted: tuple[int, ...]

    @property
    def rate(self) -> float | None:
        return self.num_accepted / self.num_verified if self.num_verified else None

    @property
    def mean_length(self) -> float | None:
        """Mean of A + 1."""
        return self.num_kept / self.num_drafts if self.num_drafts else None

    @property
    def per_position(self) -> tuple[float, ...]:
        """Share of verified proposals that were accepted, by position."""
        return tuple(
            good / all_ if all_ else 0.0 for good, all_ in zip(self.accepted, self.verified, strict=True)
        )


def acceptance(samples: Sequence[Sample]) -> Acceptance:
    """Sums the ledgers of successful requests."""
    finished = [sample.finished for sample in samples if sample.is_ok]
    ledgers = [each.ledger for each in finished]
    verified = _add_up([each.verified_per_position for each in ledgers])
    accepted = _add_up([each.accepted_per_position for each in ledgers])
    return Acceptance(
        num_rounds=sum(each.num_rounds for each in ledgers),
        num_drafts=sum(each.num_draft_rounds for each in ledgers),
        num_drafted=sum(each.usage.drafted_tokens for each in finished),
        num_verified=sum(each.usage.verified_tokens for each in finished),
        num_accepted=sum(each.usage.accepted_tokens for each in finished),
        num_kept=sum(sum(each.accept_lengths) for each in ledgers),
        verified=verified,
        accepted=(*accepted, *[0] * (len(verified) - len(accepted))),
    )


def by_category(samples: Sequence[Sample], categories: Mapping[int, str]) -> dict[str, Acceptance]:
    """One for each category that is not empty, by name.

    Args:
        categories: of sessions, by their number.
    """
    groups: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        groups[categories.get(sample.place.session, "")].append(sample)
    return {name: acceptance(groups[name]) for name in sorted(groups) if name}


def _add_up(rows: Sequence[Sequence[int]]) -> tuple[int, ...]:
    return tuple(sum(column) for column in zip_longest(*rows, fillvalue=0))
