"""A plan is looked for in slices: none is long, together they find what the whole search finds."""

from __future__ import annotations

import pytest

from coordinator.tuner.choose import MOST_GROUPS, Choice, Table, choose
from coordinator.tuner.costs import CostPriors
from coordinator.tuner.search import Search
from coordinator.tuner.survival import survival_of
from coordinator.tuner.tuner import TunedRequest, Tuner
from tests.tuner_world import World, draft_seconds, staircase

K = 7


@pytest.mark.parametrize("num_requests", [1, 2, 4, 7, 20])
def test_slices_find_what_the_whole_search_finds(num_requests: int) -> None:
    survivals = [survival_of((0.5 + 0.4 * i / num_requests,) * 3) for i in range(num_requests)]
    costs = World(staircase, draft_seconds, 0.02).costs(num_requests, 3)
    search = Search(survivals, costs)
    found = []
    while not search.is_done:
        search.advance(50)
        found.append(search.best.tokens_per_second)
    assert search.best == choose(survivals, costs)
    assert found == sorted(found)


@pytest.mark.parametrize("num_requests", [1, 3, 5, 16, 64])
def test_no_decision_holds_up_the_event_loop(num_requests: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum takes some 5 us: of a decision none are made beyond a slice and one longest draft, and of a
    thought still fewer."""
    counted = [0]
    right = Table.best_with

    def count(self: Table, longest: int) -> Choice:
        counted[0] += self.num_sums(longest)
        return right(self, longest)

    monkeypatch.setattr(Table, "best_with", count)
    tuner = Tuner(CostPriors(), lambda: 0.5)
    requests = [TunedRequest(f"r{i}", "chat", K, 100) for i in range(num_requests)]
    for _ in range(30):
        counted[0] = 0
        tuner.decide(requests)
        assert counted[0] < 300 + (min(num_requests, MOST_GROUPS) + 1) * (K + 1)
        counted[0] = 0
        tuner.think()
        assert counted[0] < 60 + (min(num_requests, MOST_GROUPS) + 1) * (K + 1)


def test_a_plan_under_way_is_made_anew_when_requests_leave() -> None:
    tuner = Tuner(CostPriors(), lambda: 0.5)
    many = [TunedRequest(f"r{i}", "chat", K) for i in range(5)]
    tuner.decide(many)
    decision = tuner.decide(many[:2])
    assert len(decision.block_sizes) == 2
    short = [TunedRequest("r0", "chat", 1), TunedRequest("r1", "chat", 0)]
    assert tuner.decide(short).block_sizes[0] <= 2
    assert tuner.decide(short).block_sizes[1] == 1
