"""The best `v` of every request and the best number of cohorts, by the cost model. Pure.

The time of a cycle depends on three numbers alone: how many requests speculate, how many proposals
they have together, and how long the longest draft is. So for each of them the most tokens are found
(a knapsack, request by request), and the rate is looked at for **every** triple and P. Every, because
cost curves are staircases: the first fall is not the end; and a longer cycle is not always worse:
requests in a Run step meanwhile. Up to `MOST_GROUPS` requests the result is exact; of more, those that
are most alike do the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from coordinator.tuner.cycle import CycleCosts, Shape, tokens_per_second

MAX_COHORTS = 3
MOST_GROUPS = 16

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


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


def choose(survivals: Sequence[Sequence[float]], costs: CycleCosts, max_cohorts: int = MAX_COHORTS) -> Choice:
    """Maximises tokens per second.

    Args:
        survivals: [N][K_r], `S_1 ..` of each request, non-increasing; empty for one that must run.
    """
    table = Table(survivals, costs, max_cohorts)
    found = [table.run(), *(table.best_with(longest) for longest in range(1, table.longest + 1))]
    return max(found, key=lambda choice: choice.tokens_per_second)


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


@dataclass(frozen=True)
class Group:
    """Requests that do the same: one, where there are few.

    Args:
        gains: [K + 1], what they commit beyond one token each with so many proposals each.
    """

    members: tuple[int, ...]
    gains: tuple[float, ...]


def groups_of(survivals: Sequence[Sequence[float]]) -> list[Group]:
    """Those that may draft, the most alike together."""
    drafting = [request for request, survival in enumerate(survivals) if survival]
    if len(drafting) > MOST_GROUPS:
        drafting.sort(key=lambda request: (len(survivals[request]), sum(survivals[request])))
    edges = [len(drafting) * i // MOST_GROUPS for i in range(MOST_GROUPS + 1)]
    if len(drafting) <= MOST_GROUPS:
        edges = list(range(len(drafting) + 1))
    return [_group(tuple(drafting[first:last]), survivals) for first, last in pairwise(edges)]


def _group(members: tuple[int, ...], survivals: Sequence[Sequence[float]]) -> Group:
    most = min(len(survivals[member]) for member in members)
    gains = [sum(sum(survivals[member][:count]) for member in members) for count in range(most + 1)]
    return Group(members, tuple(gains))


class Table:
    """The rates of all plans, one longest draft after the other."""

    def __init__(self, survivals: Sequence[Sequence[float]], costs: CycleCosts, max_cohorts: int) -> None:
        self._num_requests = len(survivals)
        self._groups = groups_of(survivals)
        self._max_cohorts = max_cohorts
        self._costs = costs
        self._verify = np.array(costs.verify_seconds)
        self._draft = np.array(costs.draft_seconds)
        self.longest = max((len(group.gains) - 1 for group in self._groups), default=0)

    def num_sums(self, longest: int) -> int:
        """What `best_with` costs: arrays that are added, each in some microseconds."""
        return (len(self._groups) + 1) * (longest + 1)

    def run(self) -> Choice:
        """Nobody drafts."""
        number = self._num_requests
        rate = number / self._costs.verify_seconds[number] if number else 0.0
        return Choice((1,) * number, 1, rate)

    def best_with(self, longest: int) -> Choice:
        """The best plan whose longest draft has exactly so many proposals, from 1 to `self.longest`."""
        start = np.full((2, self._num_requests + 1, self._num_requests * longest + 1), -np.inf)
        start[0, 0, 0] = 0.0
        tables = [start]
        for group in self._groups:
            tables.append(_with(tables[-1], group, longest))
        rates = self._rates(tables[-1][1], longest)
        number, speculating, proposals = (int(i) for i in np.unravel_index(rates.argmax(), rates.shape))
        sizes = self._traced(tables, speculating, proposals, longest)
        return Choice(sizes, number + 1, float(rates[number, speculating, proposals]))

    def _rates(self, gained: Floats, longest: int) -> Floats:
        """Tokens per second as `cycle_of` has them, [P, speculating, proposals]."""
        counts: Ints = np.indices(gained.shape)
        speculating: Ints = counts[0]
        proposals: Ints = counts[1]
        runs = self._num_requests - speculating
        run_seconds = self._verify[runs]
        found = []
        for number in range(1, max(min(self._max_cohorts, self._num_requests), 1) + 1):
            large = -(-speculating // number)
            num_large = speculating - number * (large - 1)
            verify, draft = self._parts(speculating, proposals, large, longest)
            less_verify, less_draft = self._parts(speculating, proposals, np.maximum(large - 1, 0), longest)
            verifies = num_large * verify + (number - num_large) * less_verify
            drafts = num_large * draft + (number - num_large) * less_draft
            through = verify + draft + self._costs.network_seconds + run_seconds / 2
            mixed, alone = self._costs.overhead(1, number), self._costs.overhead(0, number)
            seconds = np.maximum(np.maximum(verifies, drafts), through) + np.where(runs > 0, mixed, alone)
            idle = np.maximum(seconds - verifies, 0.0)
            steps = np.where(runs > 0, number + idle / np.maximum(run_seconds, 1e-12), 0.0)
            rates = (speculating + gained + runs * steps) / seconds
            found.append(np.where(speculating < number, -np.inf, rates))
        return np.stack(found)

    def _parts(self, speculating: Ints, proposals: Ints, size: Ints, longest: int) -> tuple[Floats, Floats]:
        """T_V and T_D of a cohort of so many requests."""
        rows = -(-(speculating + proposals) * size // np.maximum(speculating, 1))
        rows += self._num_requests - speculating
        return self._verify[np.minimum(rows, len(self._verify) - 1)], self._draft[size, longest]

    def _traced(
        self, tables: Sequence[Floats], speculating: int, proposals: int, longest: int
    ) -> tuple[int, ...]:
        """`v` of each request: the way that led to the best."""
        sizes, state = [1] * self._num_requests, (1, speculating, proposals)
        for group, before, after in zip(
            reversed(self._groups), reversed(tables[:-1]), reversed(tables[1:]), strict=True
        ):
            count, state = _came_by(before, float(after[state]), group, state, longest)
            for member in group.members:
                sizes[member] += count
        return tuple(sizes)


def _with(before: Floats, group: Group, longest: int) -> Floats:
    """The most that is gained, [a draft of full length, speculating, proposals], with one more group."""
    after, size = before.copy(), len(group.members)
    for count, gain in enumerate(group.gains[: longest + 1]):
        if count == 0:
            continue
        found = before[:, :-size, : before.shape[2] - size * count] + gain
        if count == longest:
            found = np.stack([np.full_like(found[0], -np.inf), found.max(axis=0)])
        target = after[:, size:, size * count :]
        np.maximum(target, found, out=target)
    return after


def _came_by(
    before: Floats, value: float, group: Group, state: tuple[int, int, int], longest: int
) -> tuple[int, tuple[int, int, int]]:
    """How many proposals each of the group has, and the state without it."""
    is_full, speculating, proposals = state
    if before[state] == value:
        return 0, state
    size = len(group.members)
    for count, gain in enumerate(group.gains[: longest + 1]):
        left = speculating - size, proposals - size * count
        if count == 0 or min(left) < 0:
            continue
        for flag in (0, 1) if count == longest and is_full else (is_full,) if count < longest else ():
            if before[(flag, *left)] + gain == value:
                return count, (flag, *left)
    raise AssertionError("no way leads to this state")
