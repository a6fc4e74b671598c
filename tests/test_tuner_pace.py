"""How quickly the tuner follows what changes, and what it leaves alone: pure parts, and real rounds on a
clock that jumps."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.coordinator import SOURCES, Coordinator
from coordinator.prices import Prices
from coordinator.trace.record import RoundSource
from coordinator.tuner.choose import Choice, shape_of
from coordinator.tuner.cost_table import Line
from coordinator.tuner.costs import CostPriors, Costs, RoundBytes
from coordinator.tuner.cycle import CycleCosts, Shape, cycle_of
from coordinator.tuner.kinds import CycleKind
from coordinator.tuner.planned import Planned, TunedRequest, carry, floored, way_share
from coordinator.tuner.running import RunningRate
from coordinator.tuner.search import Search
from coordinator.tuner.survival import Verified
from coordinator.tuner.tuner import Decision, Tuner
from tests.coordinator_harness import complete, request
from tests.test_cohorts import Records
from tests.timed_pair import PairCosts, TimedTarget, run_jumping, timed_pair

K = 7
TOGETHER, MIXED = CycleKind(False, False), CycleKind(True, False)
FLAT = CycleCosts((0.0, *(0.010,) * 64), ((0.0,) * 8, *((0.0, *(0.002,) * 7),) * 8), 0.0, 0.002)


async def play(
    costs: PairCosts, acceptance: float, num_requests: int, num_tokens: int
) -> tuple[Records, Coordinator, TimedTarget]:
    """Texts of one length, all at once."""
    coordinator, target, _ = timed_pair(costs, lambda *_: acceptance)
    records = Records()
    messages = [
        request(request_id=f"r{i}", max_tokens=num_tokens, source=SOURCES["drafter"])
        for i in range(num_requests)
    ]
    with coordinator.feed.listening(records):
        found = await asyncio.gather(*(complete(coordinator, message) for message in messages))
    for answer, _, failure in found:
        assert failure is None
        assert answer.token_ids == [i % 200 for i in range(num_tokens)]
    return records, coordinator, target


def test_whoever_comes_with_one_message_is_decided_for_together() -> None:
    """Else the first of eight drafts as if it were alone, and the others wait for its rows."""
    costs = PairCosts(lambda rows: 0.010, lambda batch, k: 0.002)
    records, _, _ = run_jumping(lambda: play(costs, 0.5, 8, 40))
    first = [record for record in records if record.round == 1]
    assert [record.plan.num_requests for record in first] == [8] * 8


def test_a_search_goes_on_between_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """No round waits for one: a decision for the same requests does what is planned."""
    looked: list[int] = []
    right = Search.advance

    def count(self: Search, num_sums: int) -> None:
        looked.append(num_sums)
        right(self, num_sums)

    monkeypatch.setattr(Search, "advance", count)
    tuner = Tuner(CostPriors(), lambda: 0.5)
    requests = [TunedRequest(f"r{i}", "chat", K, 100) for i in range(16)]
    tuner.decide(requests)
    for _ in range(20):
        looked.clear()
        tuner.decide(requests)
        assert not looked
        tuner.think()


def cycles_until_less(most: int) -> int:
    """Of a drafter that is always right and then never again: cycles until it is asked for less."""
    tuner = Tuner(CostPriors(verify=Line(0.010, 0.002)), lambda: 0.5)
    one = TunedRequest("r", "chat", K, 100)

    def cycle(is_right: bool) -> int:
        size = tuner.decide([one]).block_sizes[0]
        while tuner.think():
            pass
        if size > 1:
            verified = Verified(size - 1, size - 1 if is_right else 0)
            tuner.note_block(one, verified, was_probe=False)
        tuner.survival.note_tokens("r", "chat", size if is_right else 1)
        return size

    for _ in range(200):
        cycle(True)
    for number in range(most):
        if cycle(False) < K + 1:
            return number
    return most


def test_a_plan_is_made_anew_when_acceptance_moves() -> None:
    assert cycles_until_less(40) <= 21


def test_a_lesser_change_of_a_rate_is_followed() -> None:
    rate = RunningRate(128.0, 2000.0, 4.0)
    for i in range(400):
        rate.note(i % 5 > 0, float(i))
    assert rate.rate == pytest.approx(0.8, abs=0.02)
    for i in range(48):
        rate.note(i % 2 == 0, 400.0 + i)
    assert rate.rate == pytest.approx(0.5, abs=0.08)


def test_mixed_cycles_keep_their_own_overhead() -> None:
    costs = Costs(CostPriors())
    for _ in range(20):
        for shape, seconds in ((Shape(0, 4, 12, 3), 0.004), (Shape(2, 2, 6, 3), -0.009)):
            parts = costs.of_shape(shape, 1, 0, RoundBytes())
            costs.note_cycle(shape, 1, cycle_of(shape, 1, parts).seconds + seconds, parts)
    assert costs.overheads.seconds(TOGETHER) == pytest.approx(0.004)
    assert costs.overheads.seconds(MIXED) == 0.0


def test_cycles_of_several_cohorts_keep_their_own_overhead() -> None:
    """What is left over of one cohort's cycles is hidden where another computes meanwhile, until tried."""
    costs, shape = Costs(CostPriors()), Shape(0, 4, 12, 3)

    def note(number: int, seconds: float) -> None:
        parts = costs.of_shape(shape, number, 0, RoundBytes())
        costs.note_cycle(shape, number, cycle_of(shape, number, parts).seconds + seconds, parts)

    def overheads() -> list[float]:
        seen = costs.snapshot(4, K, 0, RoundBytes())
        return [seen.overhead(0, number) for number in (1, 2, 3)]

    note(1, 0.003)
    assert overheads() == pytest.approx([0.003, 0.0, 0.0])
    for _ in range(20):
        note(1, 0.003)
        note(2, 0.005)
    assert overheads() == pytest.approx([0.003, 0.005, 0.005])
    # What was dear is tried again after a while.
    for _ in range(2001):
        note(1, 0.003)
    assert overheads() == pytest.approx([0.003, 0.0, 0.0])


def planned(sizes: tuple[int, ...], number: int = 1) -> Planned:
    requests = tuple(TunedRequest(f"r{i}", "chat", K) for i in range(len(sizes)))
    return Planned(requests, ((0.5,) * K,) * len(sizes), FLAT, Choice(sizes, number, 1.0), False)


def test_who_comes_or_goes_does_not_turn_the_others_over() -> None:
    before = planned((4, 4, 1, 4), 2)
    left = carry(before, before.requests[:2])
    assert left is not None
    assert (left.block_sizes, left.num_cohorts) == ((4, 4), 2)
    new = TunedRequest("new", "chat", K)
    come = carry(before, (*before.requests[1:], new))
    assert come is not None
    assert come.block_sizes == (4, 1, 4, 4)
    short = carry(before, (TunedRequest("r0", "chat", 1),))
    assert short is not None
    assert (short.block_sizes, short.num_cohorts) == ((2,), 1)
    assert carry(before, (new,)) is None


def test_a_run_is_left_for_what_is_worth_the_way() -> None:
    run, draft = Choice((1, 1), 1, 200.0), Choice((4, 4), 1, 210.0)
    # Half a step and T_S, of eight cycles of 14 ms.
    assert way_share(run, draft, FLAT, 8) == pytest.approx(0.007 / (8 * 0.014))
    assert way_share(draft, run, FLAT, 8) == 0.0


def test_hardly_more_than_a_run_is_none() -> None:
    assert floored(Choice((4, 4), 1, 201.0), FLAT, 0.01).block_sizes == (1, 1)
    assert floored(Choice((4, 4), 1, 203.0), FLAT, 0.01).block_sizes == (4, 4)


def test_one_looks_again_for_all_when_a_probe_of_all_goes_well() -> None:
    tuner = Tuner(CostPriors(verify=Line(0.010, 0.0)), lambda: 0.5)
    requests = [TunedRequest(f"r{i}", "chat", K) for i in range(4)]
    tuner.decide(requests)
    for one in requests:
        for _ in range(30):
            tuner.note_block(one, Verified(1, 0), was_probe=False)
    while tuner.think():
        pass
    for one in requests:
        tuner.note_block(one, Verified(3, 3), was_probe=True)
    assert sum(tuner.decide(requests).is_probe) == 1


def test_the_way_out_of_a_run_is_no_overhead() -> None:
    """Nothing here takes time but services and links; a probe's way from a Run is no part of T_S."""
    costs = PairCosts(lambda rows: 0.010 + 0.002 * rows, lambda batch, k: 0.002, 0.02, 0.02)
    _, coordinator, target = run_jumping(lambda: play(costs, 0.0, 2, 3000))
    assert sum(rows == 2 for _, rows in target.steps) > 0.9 * len(target.steps), "mostly Runs"
    assert coordinator.cohorts.tuner.costs.overheads.seconds(TOGETHER) < 0.002
    assert coordinator.cohorts.tuner.costs.overheads.seconds(MIXED) < 0.002


def test_what_the_tables_have_to_learn_is_no_overhead() -> None:
    """A step and a batch were measured once, dearer than believed; a cycle of just these leaves nothing."""
    costs = Costs(CostPriors())
    costs.verify.note(5, 0.060)
    costs.draft.note(1, 0.020, 4)
    shape = shape_of((5,))
    costs.note_cycle(shape, 1, 0.080, costs.of_shape(shape, 1, 0, RoundBytes()))
    assert costs.verify.seconds(5) < 0.055, "what is believed still lies between"
    assert costs.overheads.seconds(TOGETHER) < 0.001


def test_longer_drafts_are_not_free_before_their_cost_was_seen() -> None:
    """Whoever always asks for the longest never sees what shorter ones would save."""
    costs = Costs(CostPriors())

    def asked() -> int:
        choice = Choice((4,) * 8, 1, 100.0)
        known = costs.snapshot(8, K, 0, RoundBytes())
        decision = Decision(choice.block_sizes, (False,) * 8, choice, known)
        return Prices.of(decision, costs).num_draft_tokens

    for _ in range(20):
        costs.draft.note(8, 0.006, K)
    assert asked() == 3, "what is planned, as long as all drafts were of one length"
    for k in (3, K) * 20:
        costs.draft.note(8, 0.006, k)
    assert asked() == K, "they are free, as was seen"
    for k in (3, K) * 200:
        costs.draft.note(8, 0.001 * k, k)
    assert asked() == 3


def test_beside_others_no_tail_is_verified() -> None:
    """It would be a step of its own, which all of them wait for."""
    costs = PairCosts(lambda rows: 0.010 if rows <= 8 else 0.300, lambda batch, k: 0.020)
    records, _, _ = run_jumping(lambda: play(costs, 0.95, 4, 300))
    beside = [record for record in records if record.plan.num_requests == 4 and not record.plan.is_probe]
    assert sum(record.source is RoundSource.DRAFTER for record in beside) > 50
    assert not [record for record in beside if record.source is RoundSource.TAIL]
