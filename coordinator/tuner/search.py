"""The best plan, looked for in slices: so that a decision never takes long, however many requests there
are. Pure; how much a slice is, is counted in sums."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.tuner.choose import MAX_COHORTS, Choice, Table
from coordinator.tuner.cycle import CycleCosts
from coordinator.tuner.planned import TunedRequest


class Search:
    """Looks at one longest draft after the other.

    Invariant: `best` is the best of what was looked at; with `is_done` that is everything.
    """

    def __init__(
        self, survivals: Sequence[Sequence[float]], costs: CycleCosts, max_cohorts: int = MAX_COHORTS
    ) -> None:
        self.survivals = tuple(tuple(survival) for survival in survivals)
        self.costs = costs
        self._table = Table(survivals, costs, max_cohorts)
        self._left = list(range(1, self._table.longest + 1))
        self.best: Choice = self._table.run()

    @property
    def is_done(self) -> bool:
        return not self._left

    def fits(self, requests: Sequence[TunedRequest]) -> bool:
        """Whether what is found could be done by these requests: near its end one has use for less."""
        return len(requests) == len(self.survivals) and all(
            len(survival) <= request.most_draft_tokens
            for survival, request in zip(self.survivals, requests, strict=True)
        )

    def advance(self, num_sums: int) -> None:
        """Looks at longest drafts until so much was added up, at one at least; the longest first."""
        while self._left:
            longest = self._left.pop()
            found = self._table.best_with(longest)
            if found.tokens_per_second > self.best.tokens_per_second:
                self.best = found
            num_sums -= self._table.num_sums(longest)
            if num_sums <= 0:
                return
