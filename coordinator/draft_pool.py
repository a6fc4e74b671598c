"""Several drafters as one: any round goes to any of them.

A question goes to the replica with the least outstanding work. One that waits longer than nearly all
others is asked at a second replica too (a small share of all); what a lost or hanging replica holds is
asked at another one in the same round. The first answer counts: a drafter keeps nothing, so nothing is
lost with the others.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from coordinator.draft_members import Connect, Members
from coordinator.hedging import AnswerTimes, HedgeBudget
from coordinator.question import Holder, Question
from coordinator.standing import Replica, Standing
from coordinator.tuner.link_estimate import LinkEstimate
from protos import common_pb2, draft_pb2
from protos import coordinator_pb2 as pb
from protos.errors import Unavailable

log = logging.getLogger("dlite.links")

# A replica that says nothing for so many times what is slow, and for this part of a round's patience at
# least, hangs: what it holds goes elsewhere, while half of the patience is left for that.
_HANGS_AFTER = 8
_LEAST_PATIENCE, _MOST_PATIENCE = 1 / 8, 1 / 2
# Timers are not exact.
_SLACK_SECONDS = 0.001


class PoolQuestion(Question):
    """A question that its pool asks wherever it can be answered."""

    __slots__ = ("asked", "pool", "timer")

    def __init__(self, item: draft_pb2.ProposeItem, pool: DraftPool) -> None:
        super().__init__(item)
        self.pool = pool
        # Whom it was asked, and when.
        self.asked: dict[Holder, float] = {}
        self.timer: asyncio.TimerHandle | None = None

    def answer(self, holder: Holder, proposal: draft_pb2.Proposal) -> None:
        if not self.done():
            if proposal.HasField("refusal") and not proposal.refusal.field:
                # Nothing is wrong with the question: the replica is full, or has failed.
                holder.note_failure()
                self.pool.move(self)
                if len(self.holders) > 1:
                    self.lose(holder, proposal.refusal.message)
                    return
            self.pool.note_answer(self, holder, proposal)
        super().answer(holder, proposal)

    def lose(self, holder: Holder, reason: str) -> None:
        if not self.done():
            self.pool.move(self)
        super().lose(holder, reason)

    def end(self) -> None:
        super().end()
        if self.timer is not None:
            self.timer.cancel()


class DraftPool:
    """A `DraftPort` over replicas that come and go. Everything is called on the event loop.

    Args:
        timeout_seconds: a round's patience.
        now: seconds, the clock of the event loop.
    """

    def __init__(
        self, connect: Connect, timeout_seconds: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.num_asked = 0
        self.num_hedged = 0
        self.num_moved = 0
        self._members = Members(connect, timeout_seconds, now)
        self._timeout_seconds = timeout_seconds
        self._now = now
        self._times = AnswerTimes()
        self._budget = HedgeBudget()
        # Of this moment, by cohort.
        self._chosen: dict[int, Standing] = {}

    def set_addresses(self, addresses: Sequence[str]) -> None:
        """From now on these replicas are used. New ones are connected; those that are missing get
        nothing new and go when what they have is answered. The same again changes nothing."""
        self._members.set_addresses(addresses)

    def replicas(self) -> list[pb.Replica]:
        """Every replica, those that drain as well."""
        return self._members.replicas()

    @property
    def links(self) -> dict[str, Replica]:
        """By address."""
        return self._members.links

    async def wait_settled(self, timeout_seconds: float) -> bool:
        """Waits until a replica serves, or all are refused; False when the time is over."""
        return await self._members.wait_settled(timeout_seconds)

    async def stop(self) -> None:
        """Ends all streams with an end frame."""
        await self._members.stop()

    def measure_into(self, estimate: LinkEstimate) -> None:
        """Round trips to all replicas are told to this estimate too; there may be many of them."""
        self._members.measure_into(estimate)

    @property
    def describe(self) -> common_pb2.Describe | None:
        """Of those that serve, or served last: with the largest block and anchor group of them."""
        return self._members.describe

    @property
    def refusal(self) -> str:
        return self._members.refusal

    @property
    def is_available(self) -> bool:
        return self._members.is_usable

    def propose(self, item: draft_pb2.ProposeItem, cohort: int = 0) -> PoolQuestion:
        question = PoolQuestion(item, self)
        standing = self._together(cohort) if cohort else self._members.choose()
        if standing is None:
            question.set_exception(Unavailable("no drafter is connected"))
            return question
        self.num_asked += 1
        self._budget.note_question()
        self._ask(question, standing)
        if len(self._members) > 1:
            slow = self._times.slow_seconds or self._patience
            self._arm(question, min(slow, self._patience), self._hedge)
        return question

    def note_failure(self, asked: Awaitable[draft_pb2.Proposal]) -> None:
        if not isinstance(asked, PoolQuestion):
            return
        if asked.winner is not None:
            asked.winner.note_failure()
            return
        # Whoever was asked last may have had no time to answer.
        until = self._now() - self._patience + _SLACK_SECONDS
        for holder in asked.holders:
            if asked.asked[holder] <= until:
                holder.note_failure()

    # What questions tell.

    def note_answer(self, question: PoolQuestion, holder: Holder, proposal: draft_pb2.Proposal) -> None:
        """A question has the answer that counts."""
        now = self._now()
        for asked, started in question.asked.items():
            standing = self._members.of(asked)
            if standing is not None and asked is holder:
                standing.note_answer(proposal, now - started)
                self._times.note(now - started)
            elif standing is not None:
                standing.note_seconds(now - started)

    def move(self, question: PoolQuestion) -> None:
        """Nobody who holds the question may answer it: it is asked elsewhere, if there is anybody."""
        for holder in question.holders:
            standing = self._members.of(holder)
            if standing is not None and standing.is_usable:
                return
        other = self._members.choose(without=question.asked)
        if other is not None:
            self.num_moved += 1
            self._ask(question, other)

    def _together(self, cohort: int) -> Standing | None:
        """One replica for all of a cohort, which asks in one moment: answers that come apart would be
        verified in steps apart, and everybody waits for each of these."""
        chosen = self._chosen.get(cohort)
        if chosen is None or not chosen.is_usable:
            chosen = self._members.choose()
            if chosen is not None and len(self._members) > 1:
                self._chosen[cohort] = chosen
                asyncio.get_running_loop().call_soon(self._chosen.pop, cohort, None)
        return chosen

    @property
    def _patience(self) -> float:
        """Seconds of silence after which a replica hangs."""
        wanted = _HANGS_AFTER * (self._times.slow_seconds or 0.0)
        least, most = self._timeout_seconds * _LEAST_PATIENCE, self._timeout_seconds * _MOST_PATIENCE
        return min(max(wanted, least), most)

    def _ask(self, question: PoolQuestion, standing: Standing) -> None:
        question.asked[standing.replica] = self._now()
        standing.replica.ask(question)

    def _arm(self, question: PoolQuestion, seconds: float, callback: Callable[[PoolQuestion], None]) -> None:
        if not question.done():
            question.timer = asyncio.get_running_loop().call_later(seconds, callback, question)

    def _hedge(self, question: PoolQuestion) -> None:
        """The question is slower than nearly all of late: a second replica is asked as well."""
        other = self._members.choose(without=question.asked)
        most = max((len(holder.pending) for holder in question.holders), default=0)
        if other is not None and len(other.replica.pending) <= most and self._budget.take():
            self.num_hedged += 1
            self._ask(question, other)
        self._arm(question, self._patience, self._look_for_hanging)

    def _look_for_hanging(self, question: PoolQuestion) -> None:
        """Whoever holds the question for too long and has said nothing since hangs."""
        until = self._now() - self._patience + _SLACK_SECONDS
        for holder in list(question.holders):
            standing = self._members.of(holder)
            if standing is not None and max(question.asked[holder], standing.last_answer) <= until:
                self._give_up(standing)
        self._arm(question, self._patience, self._look_for_hanging)

    def _give_up(self, standing: Standing) -> None:
        """Nothing new goes to the replica for a while, and what it holds is asked elsewhere too."""
        log.warning("drafter %s says nothing: its questions go elsewhere", standing.address)
        standing.replica.note_failure()
        for question in list(standing.replica.pending):
            if isinstance(question, PoolQuestion):
                self.move(question)
