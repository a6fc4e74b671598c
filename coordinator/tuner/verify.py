"""How much of a draft is verified, now that it is there. Pure.

Two functions with two types, because of what each may see. Greedy and coupled rounds commit the
target's own tokens whatever `v` is, so `v` may follow the drafter's confidence. In a rejection round
a `v` that depends on the proposals would bend the law of the text, so `size_of_blind_round` is given
neither proposals nor confidences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from coordinator.tuner.survival import survival_of


@dataclass(frozen=True)
class Price:
    """What a row of the target costs at this moment.

    Args:
        tokens_per_second: of all requests; what a second of the target could commit otherwise.
        verify_seconds: [rows + 1], T_V by rows.
        num_other_rows: rows of running requests that share the step.
    """

    tokens_per_second: float
    verify_seconds: tuple[float, ...]
    num_other_rows: int


@dataclass(frozen=True)
class SeeingDraft:
    """A draft of a greedy or coupled round: `a_1 .. a_k` by calibrated confidence."""

    acceptance: tuple[float, ...]


@dataclass(frozen=True)
class BlindDraft:
    """A draft of a rejection round: its length, fixed before it was drafted, is all there is to know."""

    num_proposals: int


class Item(NamedTuple):
    """Proposal `position` (1-based) of a request stands with probability `survival`."""

    survival: float
    position: int
    request: int


def best_prefix(rates: Sequence[float]) -> int:
    """The index of the largest rate; the first of equal ones."""
    return max(range(len(rates)), key=rates.__getitem__)


def sizes_of_seeing_round(drafts: Sequence[SeeingDraft], price: Price) -> tuple[int, ...]:
    """`v` of each draft of a cohort: maximises tokens less what their rows cost, at every prefix."""
    items = [
        Item(value, position, request)
        for request, draft in enumerate(drafts)
        for position, value in enumerate(survival_of(draft.acceptance), 1)
    ]
    items.sort(key=lambda item: (-item.survival, item.position, item.request))
    gains, gained = [], 0.0
    for number in range(len(items) + 1):
        gained += items[number - 1].survival if number else 0.0
        seconds = price.verify_seconds[price.num_other_rows + len(drafts) + number]
        gains.append(gained - price.tokens_per_second * seconds)
    sizes = [1] * len(drafts)
    for item in items[: best_prefix(gains)]:
        sizes[item.request] += 1
    return tuple(sizes)


def size_of_blind_round(draft: BlindDraft) -> int:
    """`v` of a rejection round: everything that was drafted."""
    return draft.num_proposals + 1
