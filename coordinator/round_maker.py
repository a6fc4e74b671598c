"""One round after the other, without a thought for how a text begins or is opened again.

What to do is decided by `steering`, what an answer means by `session`; waiting and sending again is
`exchange`'s.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from coordinator.commands import hold_command, propose_item, run_command, tensor_bytes, verify_command
from coordinator.delivery import Delivery
from coordinator.drafting import ask, drafted, looked_up
from coordinator.exchange import Exchange, Taken
from coordinator.ledger import Block, Ledger
from coordinator.pair import Services
from coordinator.request import Request
from coordinator.services import RoundLimits
from coordinator.session import RoundKind, Session
from coordinator.spent import Place, Spent
from coordinator.steering import Steering
from coordinator.trace.record import RoundSource
from coordinator.tuned import steering_of
from coordinator.tuning import (
    BlindProposals,
    DraftChoice,
    Plan,
    Proposals,
    RoundChoice,
    RoundView,
    RunChoice,
)
from protos import common_pb2
from protos.coordinator_pb2 import PROPOSAL_SOURCE_DRAFTER, PROPOSAL_SOURCE_LOOKUP, ProposalSource

# A Hold that seems lost is sent again after so many tokens.
_HOLD_AGAIN_TOKENS = 16
# As blocks are counted; forced tokens have no source.
_BLOCK_SOURCES: dict[RoundSource, ProposalSource] = {
    RoundSource.DRAFTER: PROPOSAL_SOURCE_DRAFTER,
    RoundSource.TAIL: PROPOSAL_SOURCE_DRAFTER,
    RoundSource.LOOKUP: PROPOSAL_SOURCE_LOOKUP,
}


@dataclass(frozen=True, eq=False)
class Text:
    """One text, wherever its rounds are made."""

    request: Request
    session: Session
    delivery: Delivery
    ledger: Ledger = field(default_factory=Ledger)


class RoundMaker:
    """Makes the rounds of one text at one target. Everything it holds belongs to this text alone."""

    def __init__(
        self, text: Text, services: Services, limits: RoundLimits, now: Callable[[], float] = time.monotonic
    ) -> None:
        request, session = text.request, text.session
        self.ledger = text.ledger
        self._request = request
        self._session = session
        self._services = services
        self._limits = limits
        self._delivery = text.delivery
        self._now = now
        self.exchange = Exchange(
            request.request_id, session, services.target, self.ledger, limits.timers, now
        )
        self._steering: Steering = steering_of(request.plan, request, session, services.cohorts)
        self._expects_features = False
        self._forced: tuple[int, ...] = ()

    def set_plan(self, plan: Plan) -> None:
        """How to speculate from the next round on. No round depends on the one before."""
        self._steering.leave()
        self._steering = steering_of(plan, self._request, self._session, self._services.cohorts)

    def leave(self) -> None:
        """No further round is made."""
        self._steering.leave()

    def expect_features(self) -> bool:
        """Whether the round that begins should bring features; remembers that it was asked."""
        drafter = self._services.drafter
        self._expects_features = (
            drafter is not None and self._steering.plan.uses_drafter and drafter.is_available
        )
        return self._expects_features

    async def next_round(self) -> None:
        """Makes a whole round.

        Raises:
            OutOfStep: re-open.
            DliteError: the target refuses the request for good.
        """
        await self._steering.enter(self._view())
        await self._round(self._steering.choose(self._view()))

    async def _round(self, choice: RoundChoice) -> None:
        place = Place(
            self._request.request_id,
            self._request.traffic,
            self._session.round + 1,
            self._session.num_generated,
            len(self._session.tokens),
        )
        spent = Spent(self._now(), place, share=self._steering.share, target=self._services.name)
        block: Block | None = None
        if isinstance(choice, DraftChoice):
            block = await self._draft_round(choice, spent)
        elif isinstance(choice, RunChoice):
            await self._run_round(choice.max_tokens, spent)
        else:
            spent.source = choice.source
            block = await self._verify_round(looked_up(choice.proposals, self._steering.plan), spent)
        now = self._now()
        self.ledger.note_times(spent.times(now))
        self._services.feed.note(spent.record(now, block, self._session.is_finished))

    async def _draft_round(self, choice: DraftChoice, spent: Spent) -> Block | None:
        drafter, steering = self._services.drafter, self._steering
        assert drafter is not None, "a draft was chosen without a drafter"
        features = await self.exchange.pivot_features(self._expects_features)
        spent.target_waited_seconds = self._now() - spent.started
        spent.company = await steering.gather()
        num_recent = drafter.describe.anchor_group_size if drafter.describe else 1
        item = propose_item(self._request, self._session, features, choice.k, num_recent)
        self.ledger.draft_bytes += tensor_bytes(features)
        vocab_size = self._services.target.describe.vocab_size
        asked = self._now()
        answer = await ask(
            drafter, item, self._limits.draft_timeout_seconds, vocab_size, spent.company.cohort
        )
        waited = self._now() - asked
        if answer is None:
            spent.draft_waited_seconds, spent.source = waited, RoundSource.UNDRAFTED
            self.ledger.num_undrafted_rounds += 1
            await self._run_round(1, spent)
            return None
        proposal = answer.proposal
        spent.source, spent.author = RoundSource.DRAFTER, answer.author
        spent.note_draft(proposal.timing, waited, choice.k)
        steering.note_draft(proposal.timing, choice.k)
        self.ledger.draft_bytes += proposal.ByteSize()
        return await self._verify_round(drafted(proposal, choice.num_verified), spent)

    async def _verify_round(self, proposals: Proposals, spent: Spent) -> Block:
        verified, steering = proposals.tokens, self._steering
        laws: tuple[common_pb2.TruncatedLaw, ...] = ()
        if isinstance(proposals, BlindProposals):
            laws = proposals.laws
            await steering.meet()
        elif spent.source is RoundSource.DRAFTER:
            verified = await steering.size(self._session.num_remaining, proposals)
        self._session.begin(RoundKind.VERIFY, len(verified))
        sent = self._now()
        request_id, wants = self._request.request_id, self.expect_features()
        self.exchange.begin([verify_command(request_id, self._session, verified, laws, wants)])
        taken = await self.exchange.next_verdict()
        spent.target_waited_seconds += self._now() - sent
        verdict = taken.verdict
        num_kept = self._take(taken, spent)
        source = _BLOCK_SOURCES.get(spent.source)
        # What is left of a draft was counted when it was drafted.
        num_drafted = 0 if spent.source is RoundSource.TAIL else len(proposals.tokens)
        block = Block(source, num_drafted, verdict.num_verified, verdict.num_accepted, num_kept)
        self.ledger.note_block(block)
        anchor = None if self._session.is_finished else self._session.tokens[-1]
        steering.note_block(spent.source, block, proposals, anchor)
        return block

    async def _run_round(self, max_tokens: int, spent: Spent) -> None:
        """The target decodes alone until `max_tokens`, or until something better is at hand."""
        self._session.begin(RoundKind.RUN)
        sent = self._now()
        self.exchange.begin(
            [run_command(self._request.request_id, self._session, max_tokens, self.expect_features())]
        )
        hold_at = 0
        while self._session.awaited is not None:
            taken = await self.exchange.next_verdict()
            self.ledger.num_run_tokens += self._take(taken, spent)
            if self._session.awaited and len(self._session.tokens) >= hold_at and self._should_hold():
                hold_at = len(self._session.tokens) + _HOLD_AGAIN_TOKENS
                self._services.target.send([hold_command(self._request.request_id, self._session.epoch)])
        spent.target_waited_seconds += self._now() - sent

    def _take(self, taken: Taken, spent: Spent) -> int:
        """Delivers a verdict of a round; returns how many of its tokens stand."""
        num_kept = self.deliver(taken)
        spent.note_verdict(taken.verdict.timing)
        spent.num_tokens += num_kept
        self._steering.note_verdict(taken.verdict.timing, num_kept)
        return num_kept

    def deliver(self, taken: Taken) -> int:
        """Gives new tokens to the client; returns how many of them stand."""
        self.ledger.num_recomputed_tokens += taken.verdict.recomputed_tokens
        self._forced = tuple(taken.verdict.forced_tokens)
        num_kept = self._delivery.take(taken.tokens, taken.logprobs)
        self._services.feed.note_tokens(num_kept)
        return num_kept

    def _should_hold(self) -> bool:
        return self._delivery.outlet.is_full or self._steering.should_hold(self._view())

    def _view(self) -> RoundView:
        plan, drafter = self._steering.plan, self._services.drafter
        most = 0
        if drafter is not None and plan.uses_drafter and drafter.is_available and drafter.describe:
            most = max(drafter.describe.block_size - 1, 0)
        lookup, length = self._delivery.lookup(plan.max_proposals)
        return RoundView(self._session.num_remaining, lookup, most, self._forced, length)
