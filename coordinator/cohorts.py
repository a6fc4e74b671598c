"""The requests that the tuner decides for, of one pair of target and drafter.

One decision holds for a cycle of all of them: each uses it once, at the boundary of its rounds or at a
token of its Run; whoever comes back first makes the next one. Everything here is called on the event
loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from coordinator.departures import Cohort, Departures, Pace
from coordinator.members import Assignment, Member
from coordinator.prices import Prices, WaitingOffer
from coordinator.spent import Company
from coordinator.trace.record import Share
from coordinator.tuner.choose import shape_of
from coordinator.tuner.cycle import cycle_of
from coordinator.tuner.learning import Learning
from coordinator.tuner.sources import Pick
from coordinator.tuner.tuner import Decision, TunedRequest, Tuner
from coordinator.tuner.verify import SeeingDraft, sizes_of_seeing_round

# So many cycles are measured all, after that one in some: what is left over of them changes slowly.
_ALL_CYCLES = 200
_EVERY = 4
# Before the next plan is looked for, what was decided leaves for the wire.
_THINK_AFTER_SECONDS = 0.001


class Cohorts:
    """Owns the one tuner of its pair.

    Args:
        draw: uniform in [0, 1).
        now: seconds, the clock of the rounds.
    """

    def __init__(self, tuner: Tuner, draw: Callable[[], float], now: Callable[[], float]) -> None:
        self.tuner = tuner
        self.learning = Learning(tuner, draw)
        self._now = now
        self._departures = Departures(self._pace, now)
        self._members: dict[str, Member] = {}
        self._decision: Decision | None = None
        self._prices: Prices | None = None
        self._is_changed = False
        self._started = 0.0
        self._num_tokens = 0
        self._num_renewals = 0
        self._is_regular = False
        # Who drafted in the last cycle, in the order of the members; None when it was no regular one.
        self._drafted: tuple[bool, ...] | None = None
        self._thought: asyncio.TimerHandle | None = None
        self._sizing: dict[Cohort, list[tuple[SeeingDraft | None, asyncio.Future[int]]]] = {}

    @property
    def decision(self) -> Decision | None:
        """The one in force; None before the first."""
        return self._decision

    @property
    def num_members(self) -> int:
        return len(self._members)

    @property
    def num_drafting(self) -> int:
        """Members that are to draft in this cycle."""
        return sum(member.assignment.block_size > 1 for member in self._members.values())

    @property
    def num_draft_tokens(self) -> int:
        """`k` that is asked for where confidence may choose."""
        return self._prices.num_draft_tokens if self._prices is not None else 0

    def join(self, member: Member) -> None:
        """From now on the member is decided for."""
        self._members[member.request_id] = member
        self._is_changed = True

    def leave(self, member: Member) -> None:
        """The member goes, wherever it is. Harmless when it has gone."""
        member.has_left = True
        if self._members.get(member.request_id, member) is member:
            self.tuner.forget(member.request_id)
        if self._members.get(member.request_id) is member:
            del self._members[member.request_id]
            self._is_changed = True
            self._departures.leave(member)

    def assignment(self, member: Member) -> Assignment:
        """What the member does next, asked at the boundary of its rounds."""
        self._renew_if_due(member)
        member.is_used, member.is_held = True, False
        return member.assignment

    def foresee(self, member: Member) -> Assignment:
        """What the member would do next, asked during its Run. A draft is kept until the Run has ended."""
        if not member.is_held:
            self._renew_if_due(member)
            member.is_held = member.assignment.block_size > 1
            member.is_used = not member.is_held
        return member.assignment

    def share(self, assignment: Assignment) -> Share:
        """A member's part of the plan, for its record."""
        assert self._decision is not None, "an assignment comes of a decision"
        plan = self._decision.plan
        return Share(
            assignment.block_size,
            len(plan.block_sizes),
            plan.num_cohorts,
            plan.tokens_per_second,
            assignment.is_probe,
        )

    def pick(self, request: TunedRequest, draft_size: int, offers: Sequence[WaitingOffer]) -> Pick:
        """The best of what is at hand, of a draft of `draft_size` rows (1: none) and of a Run."""
        assert self._prices is not None, "prices come with a decision"
        return self._prices.pick(self.learning, request, draft_size, offers)

    async def gather(self, member: Member) -> Company:
        """Waits until the member's cohort leaves; at once when it is alone."""
        if len(self._members) == 1 or member.has_left:
            self._departures.settle(member)
            return Company(0, 1)
        return (await self._departures.gather(member)).company

    def skip(self, member: Member, is_assigned: bool) -> None:
        """The member does something else than drafting: its cohort does not wait for it.

        Args:
            is_assigned: it was told to.
        """
        self._departures.settle(member)
        self._is_regular = self._is_regular and is_assigned

    async def size(self, member: Member, acceptance: tuple[float, ...]) -> int:
        """`v` of a draft by the confidences of its cohort's drafts, as far as they have come with it."""
        draft, cohort = SeeingDraft(acceptance), self._departures.cohort_of(member)
        if cohort is None or cohort.size == 1:
            return self._sizes([draft])[0]
        return await self._together(cohort, draft)

    async def meet(self, member: Member) -> None:
        """Waits for the drafts of the member's cohort that have come with its own, which has a size:
        what is verified together must leave together."""
        cohort = self._departures.cohort_of(member)
        if cohort is not None and cohort.size > 1:
            await self._together(cohort, None)

    def note_tokens(self, request_id: str, class_name: str, num_tokens: int) -> None:
        """A member's tokens were committed, however they were decided."""
        self._num_tokens += num_tokens
        self.tuner.survival.note_tokens(request_id, class_name, num_tokens)

    def _renew_if_due(self, member: Member) -> None:
        decision = self._decision
        if decision is None or self._is_changed:
            self._renew()
        elif member.is_used and (member.assignment.block_size > 1 or max(decision.block_sizes) == 1):
            # While some draft, those that run do not set the pace.
            self._renew()

    def _renew(self) -> None:
        members, now = list(self._members.values()), self._now()
        self._note_cycle(members, now)
        decision = self.tuner.decide([member.describe() for member in members])
        assigned = zip(members, decision.block_sizes, decision.is_probe, strict=True)
        for member, size, is_probe in assigned:
            if not member.is_held:
                member.assignment, member.is_used = Assignment(size, is_probe), False
        if self._prices is None or self._prices.plan is not decision.plan:
            self._prices = Prices.of(decision, self.tuner.costs)
        self._decision = decision
        self._started, self._num_tokens = now, 0
        self._is_changed, self._is_regular = False, True
        self._think_soon()

    def _think_soon(self) -> None:
        if self._thought is None:
            loop = asyncio.get_running_loop()
            self._thought = loop.call_later(_THINK_AFTER_SECONDS, self._think)

    def _think(self) -> None:
        """While the services compute: no round waits for a search."""
        self._thought = None
        if self._members and self.tuner.think():
            self._think_soon()

    def _note_cycle(self, members: Sequence[Member], now: float) -> None:
        """Measures the cycle that ends now, if every member did what was decided, and the one before it was
        of the same kind: what the way from a Run to a draft or from a lookup to one takes is no cycle."""
        before, self._drafted = self._drafted, None
        self._num_renewals += 1
        seconds = now - self._started
        if self._decision is None or self._is_changed or not self._is_regular or seconds <= 0:
            return
        if not all(member.is_used for member in members):
            return
        sizes = [member.did_size for member in members]
        self._drafted = tuple(size > 1 for size in sizes)
        is_looked_at = self._num_renewals < _ALL_CYCLES or self._num_renewals % _EVERY == 0
        if is_looked_at and self._drafted == before:
            self.tuner.note_cycle(self._decision, shape_of(sizes), self._num_tokens, seconds)

    def _together(self, cohort: Cohort, draft: SeeingDraft | None) -> asyncio.Future[int]:
        """`v`; of no draft it means nothing."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if cohort not in self._sizing:
            self._sizing[cohort] = []
            # The answers of a batch come in one message: after it all of them are here.
            asyncio.get_running_loop().call_soon(self._size_cohort, cohort)
        self._sizing[cohort].append((draft, future))
        return future

    def _size_cohort(self, cohort: Cohort) -> None:
        waiting = self._sizing.pop(cohort)
        drafts = [draft for draft, _ in waiting if draft is not None]
        sizes = iter(self._sizes(drafts) if drafts else ())
        for draft, future in waiting:
            size = next(sizes) if draft is not None else 0
            if not future.done():
                future.set_result(size)

    def _sizes(self, drafts: Sequence[SeeingDraft]) -> tuple[int, ...]:
        assert self._prices is not None, "prices come with a decision"
        rows = len(drafts) + sum(len(draft.acceptance) for draft in drafts)
        return sizes_of_seeing_round(drafts, self._prices.of_rows(rows))

    def _pace(self) -> Pace:
        decision = self._decision
        if decision is None:
            return Pace()
        plan = decision.plan
        seconds = cycle_of(shape_of(plan.block_sizes), plan.num_cohorts, decision.costs).seconds
        k = max(plan.num_draft_tokens, 1)
        return Pace(
            plan.num_cohorts, self.num_drafting, seconds, lambda size: self.tuner.costs.draft.seconds(size, k)
        )
