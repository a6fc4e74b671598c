"""The queue in front of the compute thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from draft_service.batcher import Answer, Batcher, Ticket
from draft_service.proposal import DraftItem, DraftMode, DraftResult
from draft_service.replay import ReplayDrafter, ReplayOptions
from protos.errors import Busy, ContractMismatch

TEXT = tuple(range(100))


class GatedDrafter(ReplayDrafter):
    """A replay drafter whose batches wait for the gate; remembers batch sizes and threads."""

    def __init__(self) -> None:
        super().__init__({"r": TEXT}, ReplayOptions((1.0,) * 4))
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.batches: list[int] = []
        self.threads: set[int] = set()

    def propose(self, items: Sequence[DraftItem]) -> list[DraftResult]:
        self.batches.append(len(items))
        self.threads.add(threading.get_ident())
        self.entered.set()
        assert self.gate.wait(30)
        if any(item.request_id == "poison" for item in items):
            raise RuntimeError("secret of the implementation")
        return super().propose(items)


class Collector:
    """An owner that keeps its answers."""

    def __init__(self) -> None:
        self.calls: list[list[Answer]] = []
        self.changed = asyncio.Event()

    def deliver(self, answers: Sequence[Answer]) -> None:
        self.calls.append(list(answers))
        self.changed.set()

    @property
    def answers(self) -> list[Answer]:
        return [answer for call in self.calls for answer in call]

    async def wait_for(self, count: int) -> None:
        while len(self.answers) < count:
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), 30)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def item(position: int) -> DraftItem:
    return DraftItem("r", (TEXT[position],), None, position, 2, DraftMode.GREEDY)


def ticket(owner: Collector, position: int, deadline: float | None = None) -> Ticket:
    return Ticket(item(position), 1, position, owner, 100.0, deadline)


@asynccontextmanager
async def running(drafter: GatedDrafter, **options) -> AsyncIterator[Batcher]:
    batcher = Batcher(drafter, **options)
    await batcher.start()
    try:
        yield batcher
    finally:
        drafter.gate.set()
        await batcher.stop()


async def entered(drafter: GatedDrafter) -> None:
    assert await asyncio.get_running_loop().run_in_executor(None, drafter.entered.wait, 30)


async def test_it_takes_what_is_queued_when_free() -> None:
    drafter, owner = GatedDrafter(), Collector()
    async with running(drafter, max_batch_items=4) as batcher:
        batcher.submit(ticket(owner, 0))
        await entered(drafter)
        for position in range(1, 8):
            batcher.submit(ticket(owner, position))
        drafter.gate.set()
        await owner.wait_for(8)
    assert drafter.batches == [1, 4, 3]
    assert [answer.ticket.round for answer in owner.answers] == list(range(8))
    assert all(
        a.result is not None and a.result.tokens == (a.ticket.round + 1, a.ticket.round + 2)
        for a in owner.answers
    )
    assert len(drafter.threads) == 1
    assert threading.get_ident() not in drafter.threads


async def test_each_owner_gets_its_own_answers_in_one_call() -> None:
    drafter, one, other = GatedDrafter(), Collector(), Collector()
    async with running(drafter) as batcher:
        batcher.submit(ticket(one, 0))
        await entered(drafter)
        for position in range(1, 5):
            batcher.submit(ticket(one if position % 2 else other, position))
        drafter.gate.set()
        await one.wait_for(3)
        await other.wait_for(2)
    assert [len(call) for call in one.calls] == [1, 2]
    assert [answer.ticket.round for answer in other.answers] == [2, 4]


async def test_late_items_are_not_computed() -> None:
    drafter, owner, clock = GatedDrafter(), Collector(), Clock()
    async with running(drafter, now_seconds=clock) as batcher:
        batcher.submit(ticket(owner, 0))
        await entered(drafter)
        batcher.submit(ticket(owner, 1, deadline=100.5))
        batcher.submit(ticket(owner, 2, deadline=102.0))
        batcher.submit(ticket(owner, 3))
        clock.now = 101.0
        drafter.gate.set()
        await owner.wait_for(4)
    by_round = {answer.ticket.round: answer for answer in owner.answers}
    assert by_round[1].result is None
    assert by_round[2].result is not None
    assert by_round[3].queue_us == 1_000_000
    assert drafter.batches == [1, 2]


async def test_a_full_queue_refuses() -> None:
    drafter, owner = GatedDrafter(), Collector()
    async with running(drafter, max_queued_items=2) as batcher:
        batcher.submit(ticket(owner, 0))
        await entered(drafter)
        batcher.submit(ticket(owner, 1))
        batcher.submit(ticket(owner, 2))
        with pytest.raises(Busy, match="2 items"):
            batcher.submit(ticket(owner, 3))


async def test_discarded_items_are_not_computed() -> None:
    drafter, gone, here = GatedDrafter(), Collector(), Collector()
    async with running(drafter) as batcher:
        batcher.submit(ticket(here, 0))
        await entered(drafter)
        batcher.submit(ticket(gone, 1))
        batcher.submit(ticket(here, 2))
        batcher.discard(gone)
        drafter.gate.set()
        await here.wait_for(2)
    assert gone.calls == []
    assert drafter.batches == [1, 1]


async def test_one_item_that_breaks_the_drafter_costs_no_neighbour(caplog: pytest.LogCaptureFixture) -> None:
    drafter, owner = GatedDrafter(), Collector()
    async with running(drafter) as batcher:
        batcher.submit(ticket(owner, 0))
        await entered(drafter)
        poison = ticket(owner, 1)
        batcher.submit(replace(poison, item=replace(poison.item, request_id="poison")))
        batcher.submit(ticket(owner, 2))
        drafter.gate.set()
        await owner.wait_for(3)
    results = {answer.ticket.round: answer.result for answer in owner.answers}
    assert results[1] is not None
    assert results[1].refusal is not None
    assert "secret" not in results[1].refusal.message
    assert results[1].refusal.message.split()[3] in caplog.text
    assert results[2] is not None
    assert results[2].tokens == (3, 4)


class BrokenDrafter(GatedDrafter):
    def self_test(self) -> None:
        raise ContractMismatch("useless")


async def test_a_failed_self_test_does_not_start() -> None:
    batcher = Batcher(BrokenDrafter())
    with pytest.raises(ContractMismatch, match="useless"):
        await batcher.start()
    await batcher.stop()
