"""The rounds of one request, told in order: open, then draft - verify - commit or run, then done.

What to do next is decided by `tuning`, what an answer means by `session`; waiting and sending again
is `exchange`'s. A target that is out of step is opened anew with all committed tokens and a higher
epoch: the text goes on without gap or repeat.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from coordinator.commands import (
    hold_command,
    open_commands,
    propose_item,
    run_command,
    tensor_bytes,
    verify_command,
)
from coordinator.delivery import Delivery
from coordinator.drafting import ask, drafted, looked_up
from coordinator.exchange import Exchange, OutOfStep, Taken
from coordinator.ledger import Block, Ledger, Spent
from coordinator.request import Request
from coordinator.services import RoundLimits, Services
from coordinator.session import RoundKind, Session
from coordinator.tuning import (
    BlindProposals,
    DraftChoice,
    ForcedChoice,
    LookupChoice,
    Proposals,
    RoundChoice,
    RoundView,
    RunChoice,
    choose_draft,
    choose_verify,
)
from protos import common_pb2
from protos.coordinator_pb2 import PROPOSAL_SOURCE_DRAFTER, PROPOSAL_SOURCE_LOOKUP, ProposalSource
from protos.errors import Unavailable

log = logging.getLogger("dlite.coordinator")

# Re-opens in a row without a single new token before the request fails.
MAX_FRUITLESS_REOPENS = 8
_FIRST_PAUSE_SECONDS = 0.02
# A Hold that seems lost is sent again after so many tokens.
_HOLD_AGAIN_TOKENS = 16
# Fewer forced tokens than these do not pay for the pause between a Run and a verification.
_MIN_FORCED_TO_HOLD = 2


class Rounds:
    """Runs one text to its end. Everything it holds belongs to this text alone.

    `opened` is set when the target has decided the first token: then the prompt can be forked. `plan`
    may change at any time: no round depends on the one before.
    """

    def __init__(
        self,
        request: Request,
        session: Session,
        services: Services,
        limits: RoundLimits,
        delivery: Delivery,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ledger = Ledger()
        self.opened = asyncio.Event()
        self.plan = request.plan
        self._request = request
        self._session = session
        self._services = services
        self._limits = limits
        self._delivery = delivery
        self._now = now
        self._exchange = Exchange(
            request.request_id, session, services.target, self.ledger, limits.timers, now
        )
        self._num_fruitless = 0
        self._expects_features = False
        self._forced: tuple[int, ...] = ()

    async def run(self) -> None:
        """Decodes until the request is finished.

        Raises:
            ClientStalled: the client does not read.
            Unavailable: the target is gone for too long.
            DliteError: the target refuses the request.
        """
        held_epoch = 0
        self._services.target.attach(self._request.request_id, self._exchange.inbox)
        while not self._session.is_finished:
            try:
                await self._open(held_epoch)
                while not self._session.is_finished:
                    await self._delivery.outlet.wait_for_room(self._limits.client_stall_seconds)
                    await self._round(choose_draft(self.plan, self._view()))
            except OutOfStep as error:
                held_epoch = error.held_epoch
                await self._pause(error)

    def close(self) -> None:
        """Closes the request at the target and drops its events. Never waits."""
        self._services.target.close(self._request.request_id, self._session.epoch, len(self._session.tokens))

    async def _open(self, held_epoch: int) -> None:
        """Round 0: the target takes all committed tokens and decides one."""
        patience = self._limits.target_loss_seconds
        if not await self._services.target.wait_connected(patience):
            raise Unavailable(f"no connection to the target for {patience:g} s", retry_after_seconds=1.0)
        is_first = self._session.epoch == 0
        started, num_tokens = self._now(), len(self._session.tokens)
        describe = self._services.target.describe
        self._exchange.inbox.clear()
        self._session.reopen(self._services.epochs.next(held_epoch))
        self._expects_features = self._wants_features()
        commands = open_commands(self._request, self._session, self._expects_features)
        if not self._delivery.awaits_prompt_logprobs:
            commands[-1].open.params.prompt_logprobs = False
        self._exchange.begin(commands)
        taken = await self._exchange.next_verdict()
        self.ledger.note_target(describe)
        if is_first:
            self.ledger.note_open(taken.verdict, self._now() - started)
        else:
            self.ledger.note_reopen(num_tokens - taken.verdict.cached_tokens)
        self._delivery.tell_prompt(taken.verdict.prompt_logprobs)
        self.opened.set()
        self._deliver(taken)

    async def _round(self, choice: RoundChoice) -> None:
        spent = Spent(self._now())
        if isinstance(choice, DraftChoice):
            await self._draft_round(choice, spent)
        elif isinstance(choice, LookupChoice):
            proposals = looked_up(choice.proposals, self.plan)
            await self._verify_round(proposals, PROPOSAL_SOURCE_LOOKUP, spent)
        elif isinstance(choice, ForcedChoice):
            await self._verify_round(looked_up(choice.proposals, self.plan), None, spent)
        else:
            await self._run_round(choice.max_tokens, spent)
        self.ledger.note_times(spent.times(self._now()))

    async def _draft_round(self, choice: DraftChoice, spent: Spent) -> None:
        drafter = self._services.drafter
        assert drafter is not None, "a draft was chosen without a drafter"
        features = await self._exchange.pivot_features(self._expects_features)
        num_recent = drafter.describe.anchor_group_size if drafter.describe else 1
        item = propose_item(self._request, self._session, features, choice.k, num_recent)
        self.ledger.draft_bytes += tensor_bytes(features)
        vocab_size = self._services.target.describe.vocab_size
        proposal = await ask(drafter, item, self._limits.draft_timeout_seconds, vocab_size)
        spent.waited_seconds += self._now() - spent.started
        if proposal is None:
            self.ledger.num_undrafted_rounds += 1
            await self._run_round(1, spent)
            return
        spent.draft_seconds = proposal.timing.total_us / 1e6
        self.ledger.draft_bytes += proposal.ByteSize()
        await self._verify_round(drafted(proposal, choice.num_verified), PROPOSAL_SOURCE_DRAFTER, spent)

    async def _verify_round(self, proposals: Proposals, source: ProposalSource | None, spent: Spent) -> None:
        verified = proposals.tokens
        laws: tuple[common_pb2.TruncatedLaw, ...] = ()
        if isinstance(proposals, BlindProposals):
            laws = proposals.laws
        else:
            verified = choose_verify(self.plan, self._session.num_remaining, proposals)
        self._session.begin(RoundKind.VERIFY, len(verified))
        self._expects_features = self._wants_features()
        sent = self._now()
        request_id, wants = self._request.request_id, self._expects_features
        self._exchange.begin([verify_command(request_id, self._session, verified, laws, wants)])
        taken = await self._exchange.next_verdict()
        spent.waited_seconds += self._now() - sent
        verdict = taken.verdict
        spent.verify_seconds = verdict.timing.total_us / 1e6
        num_kept = self._deliver(taken)
        self.ledger.note_block(
            Block(source, len(proposals.tokens), verdict.num_verified, verdict.num_accepted, num_kept)
        )

    async def _run_round(self, max_tokens: int, spent: Spent) -> None:
        """The target decodes alone until `max_tokens`, or until something better is at hand."""
        self._session.begin(RoundKind.RUN)
        self._expects_features = self._wants_features()
        sent = self._now()
        self._exchange.begin(
            [run_command(self._request.request_id, self._session, max_tokens, self._expects_features)]
        )
        hold_at = 0
        while self._session.awaited is not None:
            taken = await self._exchange.next_verdict()
            spent.verify_seconds += taken.verdict.timing.total_us / 1e6
            self.ledger.num_run_tokens += self._deliver(taken)
            if self._session.awaited and len(self._session.tokens) >= hold_at and self._should_hold():
                hold_at = len(self._session.tokens) + _HOLD_AGAIN_TOKENS
                self._services.target.send([hold_command(self._request.request_id, self._session.epoch)])
        spent.waited_seconds += self._now() - sent

    def _deliver(self, taken: Taken) -> int:
        """Gives new tokens to the client; returns how many of them stand."""
        self._num_fruitless = 0
        self.ledger.num_recomputed_tokens += taken.verdict.recomputed_tokens
        self._forced = tuple(taken.verdict.forced_tokens)
        return self._delivery.take(taken.tokens, taken.logprobs)

    def _should_hold(self) -> bool:
        if self._delivery.outlet.is_full:
            return True
        choice = choose_draft(self.plan, self._view())
        if isinstance(choice, ForcedChoice):
            return len(choice.proposals) >= _MIN_FORCED_TO_HOLD
        return not isinstance(choice, RunChoice)

    def _view(self) -> RoundView:
        plan, drafter = self.plan, self._services.drafter
        most = 0
        if drafter is not None and plan.uses_drafter and drafter.is_available and drafter.describe:
            most = max(drafter.describe.block_size - 1, 0)
        lookup = self._delivery.lookup(plan.max_proposals)
        return RoundView(self._session.num_remaining, lookup, most, self._forced)

    def _wants_features(self) -> bool:
        drafter = self._services.drafter
        return drafter is not None and self.plan.uses_drafter and drafter.is_available

    async def _pause(self, error: OutOfStep) -> None:
        """Waits a little before a re-open that follows fruitless ones."""
        self._num_fruitless += 1
        if self._num_fruitless > MAX_FRUITLESS_REOPENS:
            raise Unavailable(
                f"the target lost this request {self._num_fruitless} times without a new token: {error}",
                retry_after_seconds=1.0,
            )
        log.info("re-opening %s: %s", self._request.request_id, error)
        if self._num_fruitless > 1:
            await asyncio.sleep(_FIRST_PAUSE_SECONDS * 2**self._num_fruitless)
