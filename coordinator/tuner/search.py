"""The best plan, looked for in slices: so that a decision never takes long, however many requests there
are. Pure; how much a slice is, is counted in rates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from coordinator.tuner.choose import MAX_COHORTS, Choice, Rates, best_of, families
from coordinator.tuner.cycle import CycleCosts
from coordinator.tuner.planned import TunedRequest

# Sorting and the like, in rates.
_OF_A_FAMILY = 8


class Search:
    """Looks at one family of plans after the other, the most promising first.

    Invariant: `best` is the best of what was looked at; with `is_done` that is everything.
    """

    def __init__(
        self, survivals: Sequence[Sequence[float]], costs: CycleCosts, max_cohorts: int = MAX_COHORTS
    ) -> None:
        self.survivals = tuple(tuple(survival) for survival in survivals)
        self.costs = costs
        self.is_done = False
        self._rates = Rates(len(survivals), costs, max_cohorts)
        self._families = families(survivals)
        self._best: Choice | None = None

    @property
    def best(self) -> Choice:
        """After the first slice."""
        assert self._best is not None, "nothing was looked at"
        return self._best

    def fits(self, requests: Sequence[TunedRequest]) -> bool:
        """Whether what is found could be done by these requests: near its end one has use for less."""
        return all(
            len(survival) <= request.most_draft_tokens
            for survival, request in zip(self.survivals, requests, strict=True)
        )

    def advance(self, num_rates: int) -> None:
        """Looks at families until so many rates were computed, at one at least."""
        for choice, count in self._looked_at():
            if self._best is None or choice.tokens_per_second > self._best.tokens_per_second:
                self._best = choice
            num_rates -= count
            if num_rates <= 0:
                return
        self.is_done = True

    def _looked_at(self) -> Iterator[tuple[Choice, int]]:
        for family in self._families:
            yield best_of(family, self._rates), _OF_A_FAMILY + len(family.firsts) + len(family.items)
