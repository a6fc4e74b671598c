"""One thread that drafts, and the queue in front of it.

When the drafter is free it takes what is queued, at once: waiting for more would delay the first
item by the window and gain nothing, since the next batch gathers while this one computes.
Everything except the compute happens on the event loop; `submit` never waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from draft_service.proposal import DraftItem, DraftResult, ProposesTokens, Refusal
from protos.errors import Busy

log = logging.getLogger("dlite.draft")


@dataclass(frozen=True, eq=False)
class Ticket:
    """A queued item.

    Attributes:
        item: what to draft.
        epoch, round: echoed to the owner.
        owner: gets the answer.
        arrived_seconds: on the batcher's clock.
        deadline_seconds: after this nobody waits for the answer; None means no limit.
    """

    item: DraftItem
    epoch: int
    round: int
    owner: Owner
    arrived_seconds: float
    deadline_seconds: float | None


@dataclass(frozen=True, eq=False)
class Answer:
    """A ticket's end; `result` is None when it was too late to start.

    Attributes:
        batch: that it was computed in; None when it was too late.
    """

    ticket: Ticket
    result: DraftResult | None
    queue_us: int
    total_us: int
    batch: Batch | None = None


@dataclass(frozen=True)
class Batch:
    """One call of the drafter: its number, from 1, how many items were in it, how long it took."""

    number: int
    num_items: int
    compute_us: int


class Owner(Protocol):
    """Where answers go: called on the event loop, must not wait."""

    def deliver(self, answers: Sequence[Answer]) -> None: ...


class Batcher:
    """Runs a drafter in its own thread.

    Args:
        drafter: called from that thread only.
        max_batch_items: the most items of one call.
        max_queued_items: `submit` refuses beyond these.
        now_seconds: monotonic clock.
    """

    def __init__(
        self,
        drafter: ProposesTokens,
        max_batch_items: int = 64,
        max_queued_items: int = 4096,
        now_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._drafter = drafter
        self._max_batch_items = max_batch_items
        self._max_queued_items = max_queued_items
        self.now_seconds = now_seconds
        self._queue: deque[Ticket] = deque()
        self._wake = asyncio.Event()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dlite-draft")
        self._task: asyncio.Task[None] | None = None
        self._num_batches = 0
        self._busy_since: float | None = None

    def __len__(self) -> int:
        return len(self._queue)

    async def start(self) -> None:
        """Runs the self-test round in the compute thread, then begins to take items.

        Raises:
            ContractMismatch: the drafter cannot draft.
        """
        await asyncio.get_running_loop().run_in_executor(self._thread, self._drafter.self_test)
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Lets the running batch end; queued items are forgotten."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._queue.clear()
        # The compute thread cannot be interrupted: wait for it, but not on the event loop.
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)

    def stuck_seconds(self) -> float:
        """Since the running batch began; 0 while there is none."""
        return 0.0 if self._busy_since is None else self.now_seconds() - self._busy_since

    def submit(self, ticket: Ticket) -> None:
        """Queues an item.

        Raises:
            Busy: the queue is full.
        """
        if len(self._queue) >= self._max_queued_items:
            raise Busy(f"{len(self._queue)} items are waiting, the most this drafter queues")
        self._queue.append(ticket)
        self._wake.set()

    def discard(self, owner: Owner) -> None:
        """Forgets what an owner has queued; an answer being computed is still delivered."""
        self._queue = deque(ticket for ticket in self._queue if ticket.owner is not owner)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if not self._queue:
                self._wake.clear()
                await self._wake.wait()
            started = self.now_seconds()
            batch, late = self._take(started)
            _deliver([Answer(ticket, None, 0, 0) for ticket in late])
            if batch:
                self._busy_since = started
                results = await loop.run_in_executor(self._thread, self._compute, [t.item for t in batch])
                self._busy_since = None
                ended = self.now_seconds()
                self._num_batches += 1
                record = Batch(self._num_batches, len(batch), max(int((ended - started) * 1e6), 0))
                _deliver([_answer(t, r, started, record) for t, r in zip(batch, results, strict=True)])

    def _take(self, now: float) -> tuple[list[Ticket], list[Ticket]]:
        """The next batch, and the tickets that are too late to be in it."""
        batch: list[Ticket] = []
        late: list[Ticket] = []
        while self._queue and len(batch) < self._max_batch_items:
            ticket = self._queue.popleft()
            is_late = ticket.deadline_seconds is not None and now >= ticket.deadline_seconds
            (late if is_late else batch).append(ticket)
        return batch, late

    def _compute(self, items: list[DraftItem]) -> list[DraftResult]:
        try:
            return self._drafter.propose(items)
        except Exception as error:
            if len(items) == 1:
                return [_failed(error)]
        # Whatever broke the batch must not cost the neighbours their answers.
        return [self._compute([item])[0] for item in items]


def _failed(error: Exception) -> DraftResult:
    reference = uuid.uuid4().hex[:12]
    log.error("draft failed, reference %s", reference, exc_info=error)
    return DraftResult(refusal=Refusal("", f"internal error, reference {reference} in the service's log"))


def _answer(ticket: Ticket, result: DraftResult, started: float, batch: Batch) -> Answer:
    queue_us = max(int((started - ticket.arrived_seconds) * 1e6), 0)
    return Answer(ticket, result, queue_us, queue_us + batch.compute_us, batch)


def _deliver(answers: Sequence[Answer]) -> None:
    """Gives each owner its answers in one call."""
    by_owner: dict[int, list[Answer]] = {}
    for answer in answers:
        by_owner.setdefault(id(answer.ticket.owner), []).append(answer)
    for group in by_owner.values():
        group[0].ticket.owner.deliver(group)
