"""The tuned default against fixed choices, in real rounds on a clock that jumps: learning included."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coordinator.coordinator import SOURCES
from tests.coordinator_harness import complete, request
from tests.timed_pair import PairCosts, run_jumping, timed_pair
from tests.tuner_world import draft_seconds, staircase

NUM_TOKENS = 1000
FIXED: tuple[dict[str, int], ...] = ({"v": 1}, {"k": 2, "v": 3}, {"k": 4, "v": 5}, {"k": 7, "v": 8})


def tokens_per_second(num_requests: int, acceptance: float, rtt: float, fields: dict[str, Any]) -> float:
    """Of all requests together, from the first token to the last."""

    async def work() -> float:
        costs = PairCosts(staircase, draft_seconds, rtt / 2, rtt / 2)
        coordinator, _, _ = timed_pair(costs, lambda *_: acceptance)
        messages = [
            request(request_id=f"r{i}", max_tokens=NUM_TOKENS + i, source=SOURCES["drafter"], **fields)
            for i in range(num_requests)
        ]
        found = await asyncio.gather(*[complete(coordinator, message) for message in messages])
        assert all(failure is None for _, _, failure in found)
        return sum(len(answer.token_ids) for answer, _, _ in found) / asyncio.get_running_loop().time()

    rate: float = run_jumping(work)
    return rate


@pytest.mark.parametrize(
    ("num_requests", "acceptance", "rtt"),
    [(1, 0.8, 0.0), (1, 0.0, 0.02), (2, 0.5, 0.02), (4, 0.8, 0.0), (8, 0.8, 0.0)],
)
def test_as_fast_as_the_best_fixed_choice(num_requests: int, acceptance: float, rtt: float) -> None:
    fixed = [tokens_per_second(num_requests, acceptance, rtt, fields) for fields in FIXED]
    tuned = tokens_per_second(num_requests, acceptance, rtt, {})
    assert tuned >= 0.95 * max(fixed), (tuned, fixed)
    assert tuned >= 0.97 * fixed[0], (tuned, fixed)
