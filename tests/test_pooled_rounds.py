"""Whole texts over a pool of drafters that stall, hang, die and come back, on a clock that jumps.

The text is the target's own in all of it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from coordinator.coordinator import SOURCES, Coordinator
from coordinator.draft_pool import DraftPool
from coordinator.trace.record import RoundRecord, RoundSource
from protos.common_pb2 import FINISH_REASON_LENGTH
from tests.coordinator_fakes import counting
from tests.coordinator_harness import complete, describe_drafter, request
from tests.timed_pair import PairCosts, TimedTarget, run_jumping
from tests.tuner_world import draft_seconds, staircase
from tests.wired_drafters import WiredDrafter, coordinator_of, pool_of, right_with, wired_pool

NUM_TOKENS = 400
TEXT = [counting([0] * index) for index in range(NUM_TOKENS)]
FIXED: dict[str, Any] = {"source": SOURCES["drafter"], "k": 4, "v": 5}
COSTS = PairCosts(lambda rows: 0.010, lambda batch, k: 0.002)

Fault = Callable[[dict[str, WiredDrafter], DraftPool], Coroutine[Any, Any, None]]


class Kept:
    """Keeps all records."""

    def __init__(self) -> None:
        self.records: list[RoundRecord] = []

    def put(self, record: RoundRecord) -> None:
        self.records.append(record)

    def of(self, request_id: str) -> list[RoundRecord]:
        return [record for record in self.records if record.request_id == request_id]


async def texts(coordinator: Coordinator, num_texts: int, fields: dict[str, Any]) -> list[RoundRecord]:
    """Runs texts to their end, each of which must be the target's own; the records of their rounds."""
    kept = Kept()
    messages = [request(request_id=f"r{i}", max_tokens=NUM_TOKENS, **fields) for i in range(num_texts)]
    with coordinator.feed.listening(kept):
        found = await asyncio.gather(*(complete(coordinator, message) for message in messages))
    for answer, _, failure in found:
        assert failure is None
        assert answer.token_ids == TEXT
        assert answer.finished.finish_reason == FINISH_REASON_LENGTH
    return kept.records


async def _faults(
    drafters: dict[str, WiredDrafter], pool: DraftPool, draw: random.Random, until: asyncio.Event
) -> None:
    """Anything happens to anybody, at any time."""
    while not until.is_set():
        await asyncio.sleep(draw.random() * 0.2)
        name = draw.choice(list(drafters))
        drafter = drafters[name]
        match draw.choice(["kill", "back", "hang", "answer", "leave", "join"]):
            case "kill" if drafter.is_up:
                drafter.kill()
            case "back" if not drafter.is_up:
                drafter.come_back()
            case "hang":
                drafter.hangs = True
            case "answer":
                drafter.hangs = False
            case "leave":
                pool.set_addresses([each for each in drafters if each != name])
            case "join":
                pool.set_addresses(list(drafters))


@pytest.mark.parametrize("fields", [FIXED, {}], ids=["fixed", "tuned"])
@pytest.mark.parametrize("seed", range(3))
def test_the_text_is_the_targets_whatever_becomes_of_drafters(seed: int, fields: dict[str, Any]) -> None:
    async def work() -> None:
        draw = random.Random(seed)
        target = TimedTarget(COSTS)
        drafters = {
            name: WiredDrafter(
                lambda _: 0.002 + (0.1 if draw.random() < 0.05 else 0.0),
                right_with(target, chance),
                describe_drafter(block_size=size, fingerprint=name * 64),
            )
            for name, chance, size in (("a", 0.9, 9), ("b", 0.5, 5), ("c", 0.0, 9))
        }
        pool = wired_pool(drafters)
        pool.set_addresses(list(drafters))
        ended = asyncio.Event()
        faults = asyncio.create_task(_faults(drafters, pool, draw, ended))
        records = await texts(coordinator_of(target, pool), 3, fields)
        ended.set()
        await faults
        sources = {record.source for record in records}
        assert RoundSource.DRAFTER in sources
        assert {record.drafter for record in records if record.source is RoundSource.DRAFTER} >= {"a" * 64}
        if fields:
            assert pool.num_moved + pool.num_hedged > 0
        await pool.stop()

    run_jumping(work)


def _fates(records: list[RoundRecord]) -> list[str]:
    """What each round of a text did: who drafted, or where else its tokens came from."""
    return [
        record.drafter[:1] if record.source is RoundSource.DRAFTER else record.source.value
        for record in records
    ]


def _two(target: TimedTarget) -> tuple[WiredDrafter, WiredDrafter]:
    one, other = (
        WiredDrafter(propose=right_with(target, 0.8), describe=describe_drafter(fingerprint=name * 64))
        for name in "ab"
    )
    return one, other


async def middle_of_a_round(drafter: WiredDrafter) -> None:
    """Waits until it has been asked for a while and holds a question."""
    while len(drafter.items) < 10 or not drafter.num_waiting:  # noqa: ASYNC110 - what is watched has no event
        await asyncio.sleep(0.001)


def test_drafting_goes_on_at_another_replica_in_the_round_that_lost_its_own() -> None:
    """The replica dies with a question in its hands; no round of the text is undrafted."""

    async def work() -> None:
        target = TimedTarget(COSTS)
        one, other = _two(target)
        pool = await pool_of(one, other)
        coordinator = coordinator_of(target, pool)
        text = asyncio.create_task(texts(coordinator, 1, FIXED))
        await middle_of_a_round(one)
        one.kill()
        fates = _fates(await text)
        assert "a" in fates
        assert "b" in fates
        assert set(fates[-6:-1]) == {"b"}
        assert set(fates[:-1]) <= {"a", "b"}, fates
        assert pool.num_moved == 1

    run_jumping(work)


def test_with_nobody_left_rounds_run_undrafted_and_drafting_resumes_within_two() -> None:
    async def work() -> None:
        target = TimedTarget(COSTS)
        one, other = _two(target)
        other.is_up = False
        pool = await pool_of(one, other)
        coordinator = coordinator_of(target, pool)
        text = asyncio.create_task(texts(coordinator, 1, FIXED))
        await middle_of_a_round(one)
        one.kill()
        await asyncio.sleep(0.050)
        other.come_back()
        fates = _fates(await text)
        first = fates.index("undrafted")
        resumed = fates.index("b")
        assert "a" not in fates[first:]
        assert resumed - first <= 2, fates
        assert set(fates[first:resumed]) <= {"undrafted", "run"}
        assert set(fates[resumed:-1]) == {"b"}, fates

    run_jumping(work)


def test_drafters_are_counted_by_their_weights() -> None:
    async def work() -> None:
        target = TimedTarget(COSTS)
        one, other = _two(target)
        pool = await pool_of(one, other)
        coordinator = coordinator_of(target, pool)
        records = await texts(coordinator, 4, FIXED)
        sums = {each.fingerprint[:1]: each for each in coordinator.feed.draft_sums()}
        assert set(sums) == {"a", "b"}
        for name, each in sums.items():
            mine = [record for record in records if record.drafter == name * 64]
            whole = [record for record in mine if not record.is_cut]
            assert each.num_rounds == len(mine) > 20
            assert each.num_accepted == sum(record.num_accepted for record in mine)
            assert each.num_tokens == sum(record.num_tokens for record in mine)
            assert each.reached_per_position[0] == len([r for r in whole if r.num_verified])
            assert list(each.accepted_per_position) == [
                sum(record.num_accepted > index for record in whole)
                for index in range(len(each.accepted_per_position))
            ]
        served = {each.address: each.num_served for each in pool.replicas()}
        assert served["a"] >= sums["a"].num_rounds

    run_jumping(work)


def _tokens_per_second(num_drafters: int) -> float:
    """Of four tuned texts, whose drafters take now a bit longer, now a bit less."""

    async def work() -> float:
        target = TimedTarget(PairCosts(staircase, draft_seconds))
        draws = [random.Random(number).random for number in range(num_drafters)]
        drafters = [
            WiredDrafter(lambda _, draw=draw: 0.003 * (0.8 + 0.4 * draw()), right_with(target, 0.8))
            for draw in draws
        ]
        pool = await pool_of(*drafters)
        started = asyncio.get_running_loop().time()
        await texts(coordinator_of(target, pool), 4, {"source": SOURCES["drafter"]})
        return 4 * NUM_TOKENS / (asyncio.get_running_loop().time() - started)

    rate: float = run_jumping(work)
    return rate


def test_more_drafters_do_not_slow_cohorts() -> None:
    one, many = _tokens_per_second(1), _tokens_per_second(4)
    assert many >= 0.9 * one, (many, one)
