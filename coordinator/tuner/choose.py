"""The best `v` of every request and the best number of cohorts, by the cost model. Pure.

A *family* fixes who speculates and how long the longest draft is. Within it the time depends only on
the number of proposals, so the best use of n proposals is the n largest S: sort all (request, j) by S
descending and evaluate the rate at every prefix. Every, because cost curves are staircases: the
first fall is not the end. That the longest draft has its length is part of the family (one request
takes it whole), because a longer cycle is not always worse: requests in a Run step meanwhile. With few
requests all families are looked at, and the result is exact; with many, the plain order of the S and
ladders of the most promising requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations
from typing import NamedTuple

from coordinator.tuner.cycle import Cycle, CycleCosts, Shape, cycle_of, tokens_per_second

MAX_COHORTS = 3
# With so many requests or fewer every family is looked at.
EXACT_REQUESTS = 5
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
    rates = Rates(len(survivals), costs, max_cohorts)
    return max(
        (best_of(family, rates) for family in families(survivals)),
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
                for leader in chosen:
                    for most in range(1, len(survivals[leader]) + 1):
                        yield _led_family(survivals, chosen, leader, most)
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


def _led_family(
    survivals: Sequence[Sequence[float]], chosen: Sequence[int], leader: int, most: int
) -> Family:
    """`leader` takes `most` proposals, the others one and up to `most`."""
    others = [request for request in chosen if request != leader]
    family = _family(survivals, others, others, most)
    led = (Item(value, position, leader) for position, value in enumerate(survivals[leader][:most], 1))
    return Family((*family.firsts, *led), family.items)


class Rates:
    """Rates by the model; the times of a shape are computed once, whoever is in it."""

    def __init__(self, num_requests: int, costs: CycleCosts, max_cohorts: int) -> None:
        self.num_requests = num_requests
        self._costs = costs
        self._max_cohorts = max_cohorts
        self._cycles: dict[tuple[int, int, int], list[Cycle]] = {}

    def best(self, key: tuple[int, int, int], num_tokens: float) -> tuple[float, int]:
        """(tokens per second, P) of a shape's best P.

        Args:
            key: requests that speculate, proposals, and the longest draft.
            num_tokens: what the speculating requests commit in a cycle.
        """
        num_runs = self.num_requests - key[0]
        if num_runs + key[0] == 0:
            return 0.0, 1
        cycles = self._cycles.get(key)
        if cycles is None:
            shape = Shape(num_runs, *key)
            numbers = range(1, max(min(self._max_cohorts, key[0]), 1) + 1)
            cycles = self._cycles[key] = [cycle_of(shape, number, self._costs) for number in numbers]
        found = [(num_tokens + num_runs * cycle.num_run_steps) / cycle.seconds for cycle in cycles]
        number = best_prefix(found)
        return found[number], number + 1


def best_of(family: Family, rates: Rates) -> Choice:
    """The best prefix of a family."""
    ordered = (*family.firsts, *family.items)
    num_firsts = len(family.firsts)
    seconders = list(accumulate((item.position == 1 for item in ordered), initial=0))
    longest = list(accumulate((item.position for item in ordered), max, initial=0))
    gains = list(accumulate((item.survival for item in ordered), initial=0.0))
    found = [
        rates.best((seconders[length], length, longest[length]), seconders[length] + gains[length])
        for length in range(num_firsts, len(ordered) + 1)
    ]
    best = best_prefix([rate for rate, _ in found])
    sizes = [1] * rates.num_requests
    for item in ordered[: num_firsts + best]:
        sizes[item.request] += 1
    rate, num_cohorts = found[best]
    return Choice(tuple(sizes), num_cohorts, rate)
