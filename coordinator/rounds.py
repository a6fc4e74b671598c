"""The life of one text: open, then round after round (see `round_maker`), then done.

A target that is out of step is opened anew with all committed tokens and a higher epoch: the text goes
on without gap or repeat.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from coordinator.commands import open_commands
from coordinator.delivery import Delivery
from coordinator.exchange import OutOfStep
from coordinator.ledger import Ledger
from coordinator.request import Request
from coordinator.round_maker import RoundMaker
from coordinator.services import RoundLimits, Services
from coordinator.session import Session
from coordinator.tuning import Plan
from protos.errors import Unavailable

log = logging.getLogger("dlite.coordinator")

# Re-opens in a row without a single new token before the request fails.
MAX_FRUITLESS_REOPENS = 8
_FIRST_PAUSE_SECONDS = 0.02


class Rounds:
    """Runs one text to its end. Everything it holds belongs to this text alone.

    `opened` is set when the target has decided the first token: then the prompt can be forked.
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
        self.opened = asyncio.Event()
        self._request = request
        self._session = session
        self._services = services
        self._limits = limits
        self._delivery = delivery
        self._now = now
        self._maker = RoundMaker(request, session, services, limits, delivery, now)
        self._exchange = self._maker.exchange
        self._num_fruitless = 0

    @property
    def ledger(self) -> Ledger:
        """What the rounds did so far."""
        return self._maker.ledger

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
                    await self._maker.next_round()
                    self._num_fruitless = 0
            except OutOfStep as error:
                held_epoch = error.held_epoch
                await self._pause(error)

    def set_plan(self, plan: Plan) -> None:
        """How to speculate from the next round on. No round depends on the one before."""
        self._maker.set_plan(plan)

    def close(self) -> None:
        """Closes the request at the target and drops its events. Never waits."""
        self._maker.leave()
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
        commands = open_commands(self._request, self._session, self._maker.expect_features())
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
        self._num_fruitless = 0
        self._maker.deliver(taken)

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
