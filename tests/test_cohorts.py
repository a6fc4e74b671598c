"""Cohorts: who leaves together, who waits for whom, and that all of it is fair. On a clock that jumps."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

from coordinator.coordinator import SOURCES, Coordinator
from coordinator.departures import Departures, Pace
from coordinator.trace.record import RoundRecord, RoundSource
from tests.coordinator_harness import complete, request
from tests.timed_pair import JumpingLoop, PairCosts, TimedDrafter, TimedTarget, run_jumping, timed_pair

# Where one cohort is best: a step costs the same however many rows.
FLAT = PairCosts(lambda rows: 0.010, lambda batch, k: 0.001)
# Where two are: rows are dear, drafts and ways are long enough to hide a step.
STEEP = PairCosts(lambda rows: 0.010 + 0.001 * rows, lambda batch, k: 0.002 + 0.0005 * batch, 0.01, 0.01)


class Records(list[RoundRecord]):
    """Of a feed."""

    def put(self, record: RoundRecord) -> None:
        self.append(record)

    def drafts(self) -> list[RoundRecord]:
        return [record for record in self if record.source is RoundSource.DRAFTER]


class Played:
    """A run of several requests, and everything that was seen of it."""

    def __init__(self, costs: PairCosts, acceptance: float) -> None:
        self.records = Records()
        parts: tuple[Coordinator, TimedTarget, TimedDrafter]
        parts = timed_pair(costs, lambda *_: acceptance)
        self.coordinator, self.target, self.drafter = parts

    async def text(self, name: str, num_tokens: int, after_seconds: float = 0.0) -> list[int]:
        await asyncio.sleep(after_seconds)
        message = request(request_id=name, max_tokens=num_tokens, source=SOURCES["drafter"])
        answer, _, failure = await complete(self.coordinator, message)
        assert failure is None
        assert answer.token_ids == [i % 200 for i in range(num_tokens)]
        return answer.token_ids

    async def texts(self, *waiting: Coroutine[Any, Any, list[int]]) -> None:
        with self.coordinator.feed.listening(self.records):
            await asyncio.gather(*waiting)


def test_a_cohort_of_one_never_waits() -> None:
    async def work() -> None:
        played = Played(FLAT, 0.8)
        await played.texts(played.text("a", 300))
        drafts = played.records.drafts()
        assert len(drafts) > 50
        assert max(record.parts.scheduling for record in drafts) < 1e-9
        assert {record.cohort_size for record in drafts} == {1}

    run_jumping(work)


def test_one_cohort_is_one_batch_and_one_step() -> None:
    async def work() -> None:
        played = Played(FLAT, 0.8)
        await played.texts(*(played.text(f"r{i}", 300) for i in range(4)))
        drafts = played.records.drafts()
        assert Counter(record.plan.num_cohorts for record in drafts)[1] > 0.9 * len(drafts)
        sizes = Counter(len(batch) for _, batch in played.drafter.batches)
        assert sizes[4] > 0.7 * sum(sizes.values()), sizes
        whole = [record for record in drafts if record.cohort_size == 4]
        steps = {
            record.cohort: {r.target_step.number for r in whole if r.cohort == record.cohort}
            for record in whole
        }
        assert sum(len(found) == 1 for found in steps.values()) > 0.95 * len(steps)

    run_jumping(work)


def test_two_cohorts_take_turns_and_the_cycle_is_the_models() -> None:
    async def work() -> None:
        played = Played(STEEP, 0.9)
        await played.texts(*(played.text(f"r{i}", 500) for i in range(4)))
        drafts = played.records.drafts()
        assert Counter(record.plan.num_cohorts for record in drafts)[2] > 0.8 * len(drafts)
        middle = played.drafter.batches[20:-20]
        assert Counter(len(batch) for _, batch in middle)[2] > 0.9 * len(middle)
        turns = sum(not set(one) & set(other) for (_, one), (_, other) in pairwise(middle))
        assert turns > 0.9 * (len(middle) - 1)
        # Twice a step of 2 x (1 + k) rows: nothing of drafts and ways is left to see.
        usual = [record for record in drafts[30:-30] if record.cohort_size == 2 and not record.plan.is_probe]
        rows = Counter(record.target_step.rows for record in usual).most_common(1)[0][0]
        gaps = [b - a for (a, _), (b, _) in zip(middle, middle[2:], strict=False)]
        assert sorted(gaps)[len(gaps) // 2] <= 1.15 * 2 * STEEP.verify(rows)

    run_jumping(work)


def test_joining_and_leaving_at_any_time() -> None:
    """Requests come and go in mid-cycle; all end, and those that stay go together again."""

    async def work() -> None:
        played = Played(FLAT, 0.8)
        draw = random.Random(1)
        comers = (played.text(f"c{i}", draw.randrange(1, 60), draw.uniform(0.0, 1.5)) for i in range(30))
        await played.texts(played.text("a", 900), played.text("b", 900), *comers)
        assert played.coordinator.cohorts.num_members == 0
        late = [set(batch) for _, batch in played.drafter.batches[-20:-5]]
        assert sum(batch == {"a", "b"} for batch in late) > 10, late

    run_jumping(work)


def test_equal_requests_get_equal_shares() -> None:
    """At any instant none of four is more than three blocks behind another."""

    async def work() -> None:
        for costs, acceptance in ((FLAT, 0.8), (STEEP, 0.9)):
            played = Played(costs, acceptance)
            counts = Counter({f"r{i}": 1 for i in range(4)})
            spread = [0]

            def put(record: RoundRecord, counts: Counter[str] = counts, spread: list[int] = spread) -> None:
                counts[record.request_id] += 1
                if min(counts.values()) > 1:
                    spread.append(max(counts.values()) - min(counts.values()))

            played.records.put = put  # type: ignore[method-assign]
            await played.texts(*(played.text(f"r{i}", 400) for i in range(4)))
            # Rounds, not tokens: those are a matter of luck.
            assert max(spread[: len(spread) // 2]) <= 6, costs

    run_jumping(work)


class Wait(NamedTuple):
    """From when to when who waited."""

    name: str
    came: float
    left: float

    @property
    def seconds(self) -> float:
        return self.left - self.came


async def _cycles(departures: Departures, name: str, seconds: float, log: list[Wait]) -> None:
    """A member whose rounds take so long, for ever."""
    loop = asyncio.get_running_loop()
    while True:
        came = loop.time()
        await departures.gather(name)
        log.append(Wait(name, came, loop.time()))
        await asyncio.sleep(seconds)


async def _log(pace: Pace, seconds: dict[str, float], duration: float) -> list[Wait]:
    """Of members whose rounds take so long, in the order they left."""
    departures = Departures(lambda: pace, asyncio.get_running_loop().time)
    log: list[Wait] = []
    tasks = [asyncio.create_task(_cycles(departures, name, each, log)) for name, each in seconds.items()]
    await asyncio.sleep(duration)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return log


async def _waits(pace: Pace, seconds: dict[str, float], duration: float) -> dict[str, list[float]]:
    """How long each member waited, again and again."""
    log = await _log(pace, seconds, duration)
    return {name: [wait.seconds for wait in log if wait.name == name] for name in seconds}


def test_nobody_waits_for_a_slower_cohort() -> None:
    """Two cohorts: one that takes a second does not hold up the one that takes ten milliseconds."""

    async def work() -> None:
        seconds = {"slow1": 1.0, "slow2": 1.0, "quick1": 0.01, "quick2": 0.01}
        waits = await _waits(Pace(2, 4, 1.0), seconds, 10.0)
        quick = waits["quick1"][1:] + waits["quick2"][1:]
        assert len(quick) > 500
        assert sum(waited > 0.011 for waited in quick) < 0.05 * len(quick)
        assert len(waits["slow1"]) >= 5

    run_jumping(work)


def test_a_late_one_holds_up_its_cohort_for_two_cycles_at_most() -> None:
    async def work() -> None:
        waits = await _waits(Pace(1, 3, 0.1), {"a": 0.1, "b": 0.1, "lost": 1e9}, 10.0)
        assert max(waits["a"]) < 0.25
        assert len(waits["a"]) > 60

    run_jumping(work)


def test_whoever_leaves_while_it_waits_is_let_go() -> None:
    """A plan that changes in mid-round: the round goes on, by itself."""

    async def work() -> None:
        loop = asyncio.get_running_loop()
        departures = Departures(lambda: Pace(1, 2, 1.0), loop.time)
        await departures.gather("first")
        waiting = asyncio.create_task(departures.gather("second"))
        await asyncio.sleep(0.1)
        departures.leave("second")
        assert (await waiting).size == 1
        assert departures.num_waiting == 0
        assert loop.time() < 0.2

    run_jumping(work)


@pytest.mark.parametrize("num_cohorts", [1, 2, 3])
def test_first_come_first_served_whatever_the_speeds(num_cohorts: int) -> None:
    """Random speeds: whoever waits leaves within the time that a cohort may take."""

    async def work() -> None:
        draw = random.Random(num_cohorts)
        seconds = {f"m{i}": draw.uniform(0.01, 0.1) for i in range(7)}
        log = await _log(Pace(num_cohorts, 7, 0.05, lambda size: 0.001 * size), seconds, 20.0)
        assert all(one.left <= other.left for one in log for other in log[:50] if one.came < other.came)
        waits = {name: [wait.seconds for wait in log if wait.name == name] for name in seconds}
        # At most the others' shares leave before it, each at most one late cohort apart.
        assert max(waited for each in waits.values() for waited in each) < 0.5
        assert min(len(each) for each in waits.values()) > 0.3 * max(len(each) for each in waits.values())

    run_jumping(work)


def test_the_clock_jumps() -> None:
    loop = JumpingLoop()
    try:
        loop.run_until_complete(asyncio.sleep(3600))
        assert loop.time() == pytest.approx(3600)
    finally:
        loop.close()
