"""A pool of drafters, on a clock that jumps: who is asked, when a second one is, and who answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from coordinator.draft_pool import DraftPool
from coordinator.drafting import ask
from coordinator.hedging import SHARE
from coordinator.question import Author
from coordinator.tuner.costs import CostPriors
from coordinator.tuner.learning import Learning, Measured
from coordinator.tuner.link_estimate import LinkEstimate
from coordinator.tuner.tuner import Tuner, TunerSettings
from protos import coordinator_pb2 as pb
from protos import draft_pb2
from protos.errors import Unavailable
from tests.coordinator_fakes import V
from tests.coordinator_harness import describe_drafter
from tests.timed_pair import run_jumping
from tests.wired_drafters import WiredDrafter, pool_of, wired_pool


def item(number: int, request_id: str = "r", **fields: Any) -> draft_pb2.ProposeItem:
    values: dict[str, Any] = {"k": 2, "recent_tokens": [7], **fields}
    return draft_pb2.ProposeItem(request_id=request_id, epoch=5, round=number, **values)


def jumping(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """A test on a jumping clock."""

    def run() -> None:
        run_jumping(test)  # type: ignore[arg-type]

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


async def settle(pool: DraftPool, num_rounds: int, first: int = 1) -> None:
    """Rounds one after the other."""
    for number in range(first, first + num_rounds):
        answer = await ask(pool, item(number), 2.0, V)
        assert answer is not None
        assert answer.proposal.tokens[0] == number % 250


def now() -> float:
    return asyncio.get_running_loop().time()


def states(pool: DraftPool) -> dict[str, str]:
    return {
        each.address: pb.ReplicaState.Name(each.state).removeprefix("REPLICA_STATE_").lower()
        for each in pool.replicas()
    }


@jumping
async def test_questions_go_where_the_least_is_outstanding() -> None:
    quick, slow = WiredDrafter(), WiredDrafter(lambda _: 0.020)
    pool = await pool_of(quick, slow)
    await asyncio.gather(*(pool.propose(item(1, f"r{i}")) for i in range(8)))
    assert (len(quick.items), len(slow.items)) == (4, 4)
    assert quick.num_batches == slow.num_batches == 1, "questions asked together travel together"

    async def text(name: str) -> None:
        for number in range(2, 42):
            await pool.propose(item(number, name))

    await asyncio.gather(*(text(f"r{i}") for i in range(4)))
    assert len(quick.items) > 2 * len(slow.items) > 0
    await pool.stop()
    assert (quick.ended, slow.ended) == (["shutting down"], ["shutting down"])


@jumping
async def test_a_cohort_is_one_batch() -> None:
    one, other = WiredDrafter(), WiredDrafter()
    pool = await pool_of(one, other)
    cohorts = [3, 4, 4, 3, 3, 4]
    await asyncio.gather(*(pool.propose(item(1, f"r{i}"), cohort) for i, cohort in enumerate(cohorts)))
    assert [each.request_id for each in one.items] == ["r0", "r3", "r4"]
    assert [each.request_id for each in other.items] == ["r1", "r2", "r5"]
    await asyncio.gather(*(pool.propose(item(2, f"r{i}"), 5) for i in range(6)))
    assert sorted([one.num_batches, other.num_batches]) == [1, 2]


@jumping
async def test_one_request_alone_asks_the_quicker_one() -> None:
    quick, slow = WiredDrafter(lambda _: 0.002), WiredDrafter(lambda _: 0.020)
    pool = await pool_of(slow, quick)
    await settle(pool, 50)
    assert len(slow.items) <= 2
    await asyncio.sleep(60)
    await settle(pool, 10, 51)
    assert len(slow.items) <= 4, "what is forgotten is tried again, once"


@jumping
async def test_a_slow_question_is_asked_at_a_second_replica_too() -> None:
    stalls = {30}
    first = WiredDrafter(lambda number: 1.0 if number in stalls else 0.002)
    second = WiredDrafter(lambda _: 0.002)
    pool = await pool_of(first, second)
    longest = 0.0
    for number in range(1, 101):
        started = now()
        await pool.propose(item(number))
        longest = max(longest, now() - started)
    assert max(len(first.items), len(second.items)) >= 30, "somebody came to the question that stalls"
    assert pool.num_hedged == 1
    assert longest < 0.006


async def _hedged_share() -> tuple[int, int]:
    """Questions and second questions, where every third batch of both replicas is slow."""
    drafters = [WiredDrafter(lambda number: 0.060 if number % 3 == 0 else 0.002) for _ in range(2)]
    pool = await pool_of(*drafters)

    async def text(name: str) -> None:
        for number in range(1, 301):
            await pool.propose(item(number, name))

    await asyncio.gather(*(text(f"r{i}") for i in range(4)))
    assert sum(len(each.items) for each in drafters) == 1200 + pool.num_hedged + pool.num_moved
    return pool.num_asked, pool.num_hedged


def test_second_questions_are_a_small_share_however_slow_all_are() -> None:
    num_asked, num_hedged = run_jumping(_hedged_share)
    assert num_asked == 1200
    assert 5 <= num_hedged <= SHARE * num_asked + 4


@jumping
async def test_the_answer_of_a_lost_hedge_is_of_no_other_round() -> None:
    """It comes while the next round of the same text waits for an answer of the same replica."""
    first = WiredDrafter(lambda number: 0.030 if number == 30 else 0.010 if number > 30 else 0.002)
    second = WiredDrafter(lambda _: 0.0025)
    pool = await pool_of(first, second)
    number = 0
    while not pool.num_hedged:
        number += 1
        await settle(pool, 1, number)
    assert first.num_batches == 30
    # From now on only the first one is there, and its late answer of that round is still under way.
    second.kill()
    await settle(pool, 10, number + 1)
    assert pool.links["a"].num_stale == 1


@jumping
async def test_what_a_lost_replica_holds_is_asked_elsewhere_in_the_same_round() -> None:
    lost, other = WiredDrafter(lambda _: 0.050), WiredDrafter(lambda _: 0.050)
    pool = await pool_of(lost, other)
    questions = [asyncio.ensure_future(ask(pool, item(1, f"r{i}"), 2.0, V)) for i in range(6)]
    await asyncio.sleep(0.020)
    assert (len(lost.items), len(other.items)) == (3, 3)
    lost.kill()
    answers = await asyncio.gather(*questions)
    assert [answer.author.address for answer in answers if answer] == ["b"] * 6
    assert pool.num_moved == 3
    assert states(pool) == {"a": "lost", "b": "serving"}
    lost.come_back()
    await asyncio.sleep(0.010)
    assert states(pool) == {"a": "serving", "b": "serving"}


@jumping
async def test_a_lone_replica_that_is_lost_fails_its_questions_at_once() -> None:
    lone = WiredDrafter(lambda _: 0.050)
    pool = await pool_of(lone)
    question = asyncio.ensure_future(ask(pool, item(1), 2.0, V))
    await asyncio.sleep(0.010)
    lone.kill()
    assert await question is None
    assert now() < 0.1
    assert not pool.is_available
    with pytest.raises(Unavailable):
        await pool.propose(item(2))


@jumping
async def test_what_a_hanging_replica_holds_goes_elsewhere_while_there_is_time() -> None:
    hanging, other = WiredDrafter(), WiredDrafter()
    pool = await pool_of(hanging, other)
    await settle(pool, 20)
    hanging.hangs = True
    started = now()
    answers = await asyncio.gather(*(ask(pool, item(21, f"r{i}"), 2.0, V) for i in range(10)))
    assert [answer.author.address for answer in answers if answer] == ["b"] * 10
    assert now() - started < 0.5, "a quarter of the patience, not all of it"
    num_asked = len(hanging.items)
    await settle(pool, 20, 22)
    assert len(hanging.items) == num_asked, "nothing new while it says nothing"
    hanging.hangs = False
    await asyncio.sleep(1.0)
    await asyncio.gather(*(settle_text(pool, f"s{i}", 10) for i in range(4)))
    assert len(hanging.items) > num_asked, "and it is tried again"


@jumping
async def test_a_busy_replica_does_not_hang() -> None:
    """A batch may take longer than a hundred before it: as long as answers come nothing is given up."""
    busy = [WiredDrafter(lambda number: 0.002 if number < 30 else 0.200) for _ in range(2)]
    pool = await pool_of(*busy)
    await asyncio.gather(*(settle_text(pool, f"r{i}", 40) for i in range(4)))
    assert pool.num_moved == 0


async def settle_text(pool: DraftPool, name: str, num_rounds: int) -> None:
    for number in range(1, num_rounds + 1):
        assert await ask(pool, item(number, name), 2.0, V) is not None


@jumping
async def test_a_replica_that_does_not_fit_gets_nothing_and_stops_nobody() -> None:
    wrong = WiredDrafter(describe=describe_drafter(hidden_size=99))
    right = WiredDrafter()
    pool = await pool_of(wrong, right)
    await asyncio.gather(*(settle_text(pool, f"r{i}", 10) for i in range(4)))
    assert not wrong.items
    assert len(right.items) == 40
    assert states(pool) == {"a": "refused", "b": "serving"}
    assert "hidden_size" in pool.refusal
    assert "hidden_size" in pool.replicas()[0].last_error


@jumping
async def test_a_useless_answer_leaves_its_author_alone_not_the_others() -> None:
    useless = WiredDrafter(propose=lambda _: [])
    pool = await pool_of(useless, WiredDrafter())
    assert await ask(pool, item(1), 2.0, V) is None
    await settle(pool, 20, 2)
    assert len(useless.items) == 1


@jumping
async def test_what_a_full_replica_refuses_is_asked_elsewhere_in_the_same_round() -> None:
    full, other = WiredDrafter(), WiredDrafter()
    full.refuses = "99 items are waiting"
    pool = await pool_of(full, other)
    await settle(pool, 20)
    assert (len(full.items), len(other.items), pool.num_moved) == (1, 20, 1)
    other.refuses = full.refuses
    assert await ask(pool, item(21), 2.0, V) is None, "when all are full the round is not drafted"


@jumping
async def test_replicas_come_and_go_while_questions_are_under_way() -> None:
    drafters = {name: WiredDrafter(lambda _: 0.020) for name in ("a", "b", "c")}
    pool = wired_pool(drafters)
    pool.set_addresses(["a", "a"])
    pool.set_addresses(["a"])
    assert states(pool) == {"a": "connecting"}
    assert await pool.wait_settled(1.0)
    question = pool.propose(item(1))
    await asyncio.sleep(0.010)
    pool.set_addresses(["b", "c"])
    assert states(pool) == {"a": "draining", "b": "connecting", "c": "connecting"}
    await asyncio.sleep(0.005)
    await asyncio.gather(*(pool.propose(item(2, f"r{i}")) for i in range(4)))
    assert (await question).tokens[0] == 1, "what it has is answered"
    await asyncio.sleep(0.010)
    assert states(pool) == {"b": "serving", "c": "serving"}
    assert [len(drafters[name].items) for name in ("a", "b", "c")] == [1, 2, 2]
    assert drafters["a"].ended == ["shutting down"]
    pool.set_addresses([])
    assert not pool.is_available
    assert pool.describe is None
    pool.set_addresses(["b"])
    assert states(pool)["b"] == "serving", "one that comes back while it drains serves again"
    await asyncio.sleep(1.0)
    assert states(pool) == {"b": "serving"}
    assert pool.is_available


@jumping
async def test_each_drafter_is_asked_for_what_it_can_do() -> None:
    small = WiredDrafter(describe=describe_drafter(block_size=4, anchor_group_size=1, fingerprint="s" * 64))
    large = WiredDrafter(describe=describe_drafter(block_size=9, anchor_group_size=3, fingerprint="l" * 64))
    pool = await pool_of(small, large)
    assert pool.describe is not None
    assert (pool.describe.block_size, pool.describe.anchor_group_size) == (9, 3)
    wanted = {"k": 8, "recent_tokens": [5, 6, 7]}
    answers = await asyncio.gather(*(ask(pool, item(1, f"r{i}", **wanted), 2.0, V) for i in range(2)))
    assert [(each.k, list(each.recent_tokens)) for each in (*small.items, *large.items)] == [
        (3, [7]),
        (8, [5, 6, 7]),
    ]
    assert [answer.author for answer in answers if answer] == [Author("a", "s" * 64), Author("b", "l" * 64)]


@jumping
async def test_batches_of_two_replicas_have_different_numbers() -> None:
    pool = await pool_of(WiredDrafter(), WiredDrafter())
    found = await asyncio.gather(*(pool.propose(item(1, f"r{i}")) for i in range(4)))
    steps = [proposal.timing.step for proposal in found]
    assert len(set(steps)) == 2, steps
    assert steps[0] == steps[2], "those of one batch have one number"


@jumping
async def test_round_trips_to_all_are_told_to_every_pair() -> None:
    pool = await pool_of(WiredDrafter(), WiredDrafter())
    estimates = [LinkEstimate(), LinkEstimate()]
    for estimate in estimates:
        pool.measure_into(estimate)
    for replica in pool.links.values():
        replica.on_round_trip(0.010, 500)  # type: ignore[attr-defined]
    assert [each.report().num_samples for each in estimates] == [2, 2]


def test_each_batch_teaches_once_however_answers_are_mixed() -> None:
    tuner = Tuner(CostPriors(), lambda: 0.5, TunerSettings())
    learned = Learning(tuner, lambda: 0.5)
    noted: list[tuple[int, float, float]] = []
    tuner.costs.draft.note = lambda *batch: noted.append(batch)  # type: ignore[method-assign]
    first, second = Measured(7, 3, 0.002, 4), Measured((1 << 32) + 9, 2, 0.001, 4)
    for batch in (first, second, first, second, first):
        learned.note_batch(batch)
    assert noted == [(3, 0.002, 4), (2, 0.001, 4)]
