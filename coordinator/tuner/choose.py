"""The best `v` of every request and the best number of cohorts, by the cost model. Pure.

A *family* fixes who speculates and how long a draft may be. Within it the time depends only on the
number of proposals, so the best use of n proposals is the n largest S: sort all (request, j) by S
descending and evaluate the rate at every prefix. Every, because cost curves are staircases: the
first fall is not the end. With few requests all families are looked at, and the result is exact;
with many, the plain order of the S and ladders of the most promising requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations
from typing import NamedTuple

from coordinator.tuner.cycle import CycleCosts, Shape, tokens_per_second

MAX_COHORTS = 3
# With so many requests or fewer every family is looked at.
EXACT_REQUESTS = 3
# Above, sizes of a group grow by a third at most.
_GROWTH = 3


@dataclass(frozen=True)
class Choice:
    """What all requests do in the coming cycles.

    Args:
        block_sizes: [N], `v` of each request; 1 is `Run`.
        num_cohorts: P.
        tokens_per_second: predicted, of all requests together.
    """

    block_sizes: tuple[int, ...]
    num_cohorts: int
    tokens_per_second: float

    @property
    def num_draft_tokens(self) -> int:
        """`k` of the longest draft; 0 asks no drafter."""
        return max(self.block_sizes, default=1) - 1


class Item(NamedTuple):
    """Proposal `position` (1-based) of a request stands with probability `survival`."""

    survival: float
    position: int
    request: int


@dataclass(frozen=True)
class Family:
    """`firsts` are taken whatever happens, then `items` in their order."""

    firsts: tuple[Item, ...]
    items: tuple[Item, ...]


def best_prefix(rates: Sequence[float]) -> int:
    """The index of the largest rate; the first of equal ones."""
    return max(range(len(rates)), key=rates.__getitem__)


def choose(survivals: Sequence[Sequence[float]], costs: CycleCosts, max_cohorts: int = MAX_COHORTS) -> Choice:
    """Maximises tokens per second.

    Args:
        survivals: [N][K_r], `S_1 ..` of each request, non-increasing; empty for one that must run.
    """
    return max(
        (_best_of(family, len(survivals), costs, max_cohorts) for family in families(survivals)),
        key=lambda choice: choice.tokens_per_second,
    )


def evaluate(
    block_sizes: Sequence[int],
    num_cohorts: int,
    survivals: Sequence[Sequence[float]],
    costs: CycleCosts,
) -> float:
    """Tokens per second of given block sizes."""
    num_tokens = sum(
        1.0 + sum(survival[: size - 1])
        for size, survival in zip(block_sizes, survivals, strict=True)
        if size > 1
    )
    return tokens_per_second(shape_of(block_sizes), num_cohorts, costs, num_tokens)


def shape_of(block_sizes: Sequence[int]) -> Shape:
    """What travels in a cycle of these block sizes."""
    chosen = [size for size in block_sizes if size > 1]
    return Shape(
        num_runs=len(block_sizes) - len(chosen),
        num_speculating=len(chosen),
        num_proposals=sum(chosen) - len(chosen),
        num_draft_tokens=max(chosen, default=1) - 1,
    )


def families(survivals: Sequence[Sequence[float]]) -> Iterator[Family]:
    """Who may speculate and how long, best first within each."""
    longest = max((len(survival) for survival in survivals), default=0)
    yield _family(survivals, (), range(len(survivals)), longest)
    drafting = [request for request, survival in enumerate(survivals) if survival]
    if len(drafting) <= EXACT_REQUESTS:
        for size in range(1, len(drafting) + 1):
            for chosen in combinations(drafting, size):
                for most in range(1, longest + 1):
                    yield _family(survivals, chosen, chosen, most)
        return
    promising = sorted(drafting, key=lambda request: -sum(survivals[request]))
    for size in _ladder(len(promising)):
        chosen = tuple(promising[:size])
        yield _family(survivals, chosen, chosen, longest)


def _ladder(most: int) -> Iterator[int]:
    size = 1
    while size < most:
        yield size
        size += max(1, size // _GROWTH)
    yield most


def _family(
    survivals: Sequence[Sequence[float]], firsts: Sequence[int], requests: Sequence[int], most: int
) -> Family:
    skipped = 1 if firsts else 0
    items = [
        Item(value, position, request)
        for request in requests
        for position, value in enumerate(survivals[request][:most], 1)
        if position > skipped
    ]
    items.sort(key=lambda item: (-item.survival, item.position, item.request))
    return Family(tuple(Item(survivals[request][0], 1, request) for request in firsts), tuple(items))


def _best_of(family: Family, num_requests: int, costs: CycleCosts, max_cohorts: int) -> Choice:
    """The best prefix of a family."""
    ordered = (*family.firsts, *family.items)
    num_firsts = len(family.firsts)
    seconders = list(accumulate((item.position == 1 for item in ordered), initial=0))
    longest = list(accumulate((item.position for item in ordered), max, initial=0))
    gains = list(accumulate((item.survival for item in ordered), initial=0.0))
    cohorts, rates = [], []
    for length in range(num_firsts, len(ordered) + 1):
        speculating = seconders[length]
        shape = Shape(num_requests - speculating, speculating, length, longest[length])
        found = [
            tokens_per_second(shape, number, costs, speculating + gains[length])
            for number in range(1, max(min(max_cohorts, speculating), 1) + 1)
        ]
        number = best_prefix(found)
        cohorts.append(number + 1)
        rates.append(found[number])
    best = best_prefix(rates)
    sizes = [1] * num_requests
    for item in ordered[: num_firsts + best]:
        sizes[item.request] += 1
    return Choice(tuple(sizes), cohorts[best], rates[best])
