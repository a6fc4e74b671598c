"""The tuner's hand on the rounds of one text: where proposals come from, how many are verified.

A blind (rejection) round has all of this fixed before its proposals exist: no confidence, no kept
tail, and what past rounds showed is of positions that are committed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from coordinator.cohorts import Cohorts
from coordinator.ledger import Block
from coordinator.members import Assignment, Member
from coordinator.prices import WaitingOffer
from coordinator.request import Request
from coordinator.session import Session
from coordinator.spent import Company
from coordinator.steering import FixedSteering, Steering, is_worth_a_hold
from coordinator.trace.record import RoundSource, Share
from coordinator.tuner.learning import Measured, judged
from coordinator.tuner.sources import Source, kept_tail
from coordinator.tuner.survival import Verified
from coordinator.tuner.tuner import TunedRequest
from coordinator.tuning import (
    DraftChoice,
    ForcedChoice,
    LookupChoice,
    Plan,
    Proposals,
    RoundChoice,
    RoundView,
    RunChoice,
    SeenProposals,
    TailChoice,
)
from protos import common_pb2
from protos.coordinator_pb2 import PROPOSAL_SOURCE_LOOKUP_THEN_DRAFTER


def steering_of(plan: Plan, request: Request, session: Session, cohorts: Cohorts) -> Steering:
    """Who decides about a text of this plan; a tuned one joins the cohorts."""
    if not plan.is_tuned or not plan.speculates:
        return FixedSteering(plan)
    return TunedSteering(plan, request, session, cohorts)


@dataclass(frozen=True)
class _Classes:
    """The classes in which acceptance is counted, of one kind of traffic."""

    traffic: str

    @property
    def drafter(self) -> str:
        return f"{self.traffic}/{RoundSource.DRAFTER}"

    @property
    def tail(self) -> str:
        return f"{self.traffic}/{RoundSource.TAIL}"

    def lookup(self, length: int) -> str:
        """By the length of what was found again."""
        return f"{self.traffic}/{RoundSource.LOOKUP}{length}"


@dataclass(frozen=True)
class _Tail:
    """The rest of a draft, good while the text is `num_tokens` long."""

    tokens: tuple[int, ...] = ()
    num_tokens: int = 0


class TunedSteering:
    """Joins the cohorts at its first round: before that the prompt is computed.

    Invariant: `_tail` is empty in a blind plan.
    """

    def __init__(self, plan: Plan, request: Request, session: Session, cohorts: Cohorts) -> None:
        self.plan = plan
        self.share = Share()
        self._request_id = request.request_id
        self._classes = _Classes(request.traffic)
        self._session = session
        self._cohorts = cohorts
        self._learning = cohorts.learning
        self._member = Member(request.request_id, self._describe)
        self._has_joined = False
        self._most_drafted = 0
        self._assignment = Assignment()
        self._tail = _Tail()
        self._lookup_length = 0

    async def enter(self, view: RoundView) -> None:
        if not self._has_joined:
            self._enter(view)
            # The requests whose prompts were computed in one step come with one message.
            await asyncio.sleep(0)

    def choose(self, view: RoundView) -> RoundChoice:
        self._enter(view)
        assignment = self._assignment = self._cohorts.assignment(self._member)
        choice = self._pick(view, assignment)
        if not isinstance(choice, DraftChoice):
            is_assigned = isinstance(choice, RunChoice) and assignment.block_size == 1
            self._cohorts.skip(self._member, is_assigned)
            self._member.did_size = 1
        self._lookup_length = view.lookup_length
        self.share = self._cohorts.share(assignment)
        return choice

    def should_hold(self, view: RoundView) -> bool:
        self._enter(view)
        return is_worth_a_hold(self._pick(view, self._cohorts.foresee(self._member)))

    async def gather(self) -> Company:
        return await self._cohorts.gather(self._member)

    async def size(self, num_remaining: int, proposals: SeenProposals) -> tuple[int, ...]:
        most = min(num_remaining - 1, len(proposals.tokens))
        size = self._assignment.block_size
        if proposals.probabilities and not self._assignment.is_probe:
            acceptance = self._learning.acceptance(self._classes.drafter, proposals.probabilities[:most])
            size = await self._cohorts.size(self._member, acceptance)
        else:
            await self.meet()
        return proposals.tokens[: min(size - 1, most)]

    async def meet(self) -> None:
        await self._cohorts.meet(self._member)

    # What a round teaches that was begun before the member left is of no request any more.

    def note_draft(self, timing: common_pb2.Timing, k: int) -> None:
        self._learning.note_batch(Measured(timing.step, timing.step_rows, timing.step_us / 1e6, k))

    def note_verdict(self, timing: common_pb2.Timing, num_tokens: int) -> None:
        if not timing.step_prefill_rows:
            self._learning.note_step(
                Measured(timing.step, timing.step_rows, timing.step_us / 1e6, timing.step_context)
            )
        if not self._member.has_left:
            self._cohorts.note_tokens(self._request_id, self._classes.drafter, num_tokens)

    def note_block(self, source: RoundSource, block: Block, proposals: Proposals, anchor: int | None) -> None:
        if self._member.has_left:
            return
        verified = Verified(block.num_verified, block.num_accepted, is_cut=anchor is None)
        tail, self._tail = self._tail.tokens, _Tail()
        if source is RoundSource.LOOKUP:
            self._learning.note_offer(self._request_id, self._classes.lookup(self._lookup_length), verified)
        elif source is RoundSource.TAIL:
            self._learning.note_offer(self._request_id, self._classes.tail, judged(tail, verified, anchor))
            self._keep(tail, verified, anchor)
        elif source is RoundSource.DRAFTER:
            self._member.did_size = block.num_verified + 1
            confidences: tuple[float, ...] = ()
            if isinstance(proposals, SeenProposals):
                confidences = proposals.probabilities
                self._keep(proposals.tokens, verified, anchor)
                verified = judged(proposals.tokens, verified, anchor)
            self._learning.note_draft(self._describe(), verified, confidences, self._assignment.is_probe)

    def leave(self) -> None:
        self._cohorts.leave(self._member)

    def _enter(self, view: RoundView) -> None:
        self._most_drafted = view.max_drafter_proposals
        if not self._has_joined:
            self._has_joined = True
            self._cohorts.join(self._member)

    def _describe(self) -> TunedRequest:
        session = self._session
        most = min(self._most_drafted, self.plan.max_proposals, session.num_remaining - 1)
        return TunedRequest(self._request_id, self._classes.drafter, max(most, 0), len(session.tokens))

    def _keep(self, proposals: tuple[int, ...], verified: Verified, anchor: int | None) -> None:
        if anchor is not None:
            tokens = kept_tail(proposals, verified.num_verified, verified.num_accepted, anchor)
            self._tail = _Tail(tokens, len(self._session.tokens))

    def _pick(self, view: RoundView, assignment: Assignment) -> RoundChoice:
        most = min(self.plan.max_proposals, view.num_remaining - 1)
        if view.forced and most > 0:
            return ForcedChoice(view.forced[:most])
        draft = self._draft(assignment, min(most, view.max_drafter_proposals))
        if assignment.is_probe:
            return draft or RunChoice(view.num_remaining)
        offers = self._offers(view, most)
        if not offers:
            return draft or RunChoice(view.num_remaining)
        # Lookup then drafter: a lookup that is worth more than a Run is taken.
        is_ordered = self.plan.source == PROPOSAL_SOURCE_LOOKUP_THEN_DRAFTER
        size = 1 if draft is None or is_ordered else assignment.block_size
        found = self._cohorts.pick(self._describe(), size, offers)
        if found.source is Source.LOOKUP:
            return LookupChoice(view.lookup[: found.block_size - 1])
        if found.source is Source.TAIL:
            return TailChoice(self._tail.tokens[: found.block_size - 1])
        if draft is not None and is_ordered:
            return draft
        return (
            draft if draft is not None and found.source is Source.DRAFTER else RunChoice(view.num_remaining)
        )

    def _draft(self, assignment: Assignment, most: int) -> DraftChoice | None:
        size = min(assignment.block_size - 1, most)
        if size <= 0 or not self.plan.uses_drafter:
            return None
        if self.plan.is_blind:
            return DraftChoice(size, size)
        # More than are to be verified, so that confidence has a choice; a probe has none.
        asked = size if assignment.is_probe else min(self._cohorts.num_draft_tokens, most)
        return DraftChoice(max(asked, size))

    def _offers(self, view: RoundView, most: int) -> list[WaitingOffer]:
        found = []
        if view.lookup and most > 0 and self.plan.uses_lookup:
            name = self._classes.lookup(view.lookup_length)
            found.append(WaitingOffer(Source.LOOKUP, name, min(len(view.lookup), most)))
        tail = self._tail
        # Beside others a tail would be a step of its own, which all of them wait for: a new draft is not.
        is_alone = self._cohorts.num_drafting <= 1
        if is_alone and tail.tokens and most > 0 and tail.num_tokens == len(self._session.tokens):
            found.append(WaitingOffer(Source.TAIL, self._classes.tail, min(len(tail.tokens), most)))
        return found
