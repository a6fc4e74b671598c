"""Where the proposals of one request come from: the expected gain of each source. Pure.

A kept tail, a lookup and a draft are the same kind of offer: proposals that stand with known
probabilities, at a time. `Run` is what all of them must beat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from coordinator.tuner.verify import best_prefix


class Source(Enum):
    RUN = auto()
    # The rest of a draft whose verified part was wholly accepted.
    TAIL = auto()
    LOOKUP = auto()
    DRAFTER = auto()


@dataclass(frozen=True)
class Offer:
    """Proposals to be had.

    Args:
        survival: [k], non-increasing.
        ahead_seconds: before the target can begin: drafting and both links for a drafter, the link
            of the target alone for a lookup or a tail.
    """

    source: Source
    survival: tuple[float, ...]
    ahead_seconds: float


@dataclass(frozen=True)
class Pick:
    """The best offer: verify `block_size` rows of it, for so many tokens per second."""

    source: Source
    block_size: int
    tokens_per_second: float


def pick_source(offers: Sequence[Offer], verify_seconds: tuple[float, ...], num_other_rows: int) -> Pick:
    """The fastest way for one request, all else being equal.

    Args:
        verify_seconds: [rows + 1], T_V by rows; num_other_rows: rows of others in the same step.
    """
    run = Pick(Source.RUN, 1, 1.0 / verify_seconds[num_other_rows + 1])
    picks = [_pick_of(offer, verify_seconds, num_other_rows) for offer in offers if offer.survival]
    return max((run, *picks), key=lambda pick: pick.tokens_per_second)


def _pick_of(offer: Offer, verify_seconds: tuple[float, ...], num_other_rows: int) -> Pick:
    rates, tokens = [], 1.0
    for position, value in enumerate(offer.survival, 1):
        tokens += value
        rates.append(tokens / (offer.ahead_seconds + verify_seconds[num_other_rows + 1 + position]))
    best = best_prefix(rates)
    return Pick(offer.source, best + 2, rates[best])


def kept_tail(proposals: Sequence[int], num_verified: int, num_accepted: int, anchor: int) -> tuple[int, ...]:
    """What is left of a greedy or coupled draft and still continues the text.

    With `v - 1` = num_verified proposals verified and all of them accepted, the target decided the
    token after them itself; if that new anchor is the next proposal, those after it were drafted
    behind exactly this text. Otherwise nothing.
    """
    if num_accepted < num_verified or num_verified >= len(proposals):
        return ()
    return tuple(proposals[num_verified + 1 :]) if proposals[num_verified] == anchor else ()
