"""The life of one text: open, then round after round (see `round_maker`), then done.

At a target that is out of step the text is opened anew with all committed tokens and a higher epoch; when
the target is lost, at another one. The text goes on without gap or repeat.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from coordinator.commands import open_commands
from coordinator.exchange import OutOfStep
from coordinator.ledger import Ledger
from coordinator.round_maker import RoundMaker, Text
from coordinator.services import RoundLimits
from coordinator.target_pool import TargetPool
from coordinator.target_replica import TargetReplica
from coordinator.tuning import Plan
from protos.errors import Unavailable

log = logging.getLogger("dlite.coordinator")

# Re-opens in a row without a single new token before the request fails.
MAX_FRUITLESS_REOPENS = 8
_FIRST_PAUSE_SECONDS = 0.02


@dataclass(frozen=True, eq=False)
class _Stay:
    """A text at a target."""

    replica: TargetReplica
    maker: RoundMaker


class Rounds:
    """Runs one text to its end, at one target or, when that is lost, at several one after the other.
    Everything it holds belongs to this text alone.

    `opened` is set when the target has decided the first token: then the prompt can be forked.
    """

    def __init__(
        self, text: Text, targets: TargetPool, limits: RoundLimits, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.opened = asyncio.Event()
        self._text = text
        self._request = text.request
        self._session = text.session
        self._delivery = text.delivery
        self._targets = targets
        self._limits = limits
        self._now = now
        self._plan = text.request.plan
        self._stay: _Stay | None = None
        self._num_fruitless = 0

    @property
    def ledger(self) -> Ledger:
        """What the rounds did so far."""
        return self._text.ledger

    async def run(self) -> None:
        """Decodes until the request is finished.

        Raises:
            ClientStalled: the client does not read.
            Unavailable: no target is there for too long.
            DliteError: the target refuses the request.
        """
        held_epoch = 0
        while not self._session.is_finished:
            try:
                stay = await self._settle()
                await self._open(stay, held_epoch)
                while not self._session.is_finished:
                    await self._delivery.outlet.wait_for_room(self._limits.client_stall_seconds)
                    await stay.maker.next_round()
                    self._num_fruitless = 0
            except OutOfStep as error:
                held_epoch = error.held_epoch
                await self._pause(error)

    def set_plan(self, plan: Plan) -> None:
        """How to speculate from the next round on. No round depends on the one before."""
        self._plan = plan
        if self._stay is not None:
            self._stay.maker.set_plan(plan)

    def close(self) -> None:
        """Closes the request at the target and drops its events. Never waits."""
        self._leave()
        self._targets.leave(self._request.request_id)

    def _leave(self) -> None:
        """Leaves the target; what it holds of this text is freed, also when it has lost its stream."""
        stay, self._stay = self._stay, None
        if stay is not None:
            stay.maker.leave()
            num_tokens = len(self._session.tokens)
            stay.replica.port.close(self._request.request_id, self._session.epoch, num_tokens)

    async def _settle(self) -> _Stay:
        """Stays, or goes to another target."""
        replica = await self._targets.settle(self._request, self._limits.target_loss_seconds)
        if self._stay is not None and self._stay.replica is replica:
            return self._stay
        self._leave()
        maker = RoundMaker(self._text, replica.services, self._limits, self._now)
        if self._plan is not self._request.plan:
            maker.set_plan(self._plan)
        replica.attach(self._request.request_id, maker.exchange.inbox)
        self._stay = _Stay(replica, maker)
        return self._stay

    async def _open(self, stay: _Stay, held_epoch: int) -> None:
        """Round 0: the target takes all committed tokens and decides one."""
        is_first = self._session.epoch == 0
        started, num_tokens = self._now(), len(self._session.tokens)
        services, maker = stay.replica.services, stay.maker
        maker.exchange.inbox.clear()
        self._session.reopen(services.epochs.next(held_epoch))
        commands = open_commands(self._request, self._session, maker.expect_features())
        if not self._delivery.awaits_prompt_logprobs:
            commands[-1].open.params.prompt_logprobs = False
        maker.exchange.begin(commands)
        taken = await maker.exchange.next_verdict()
        stay.replica.note_opened()
        self.ledger.note_target(services.target.describe)
        if is_first:
            self.ledger.note_open(taken.verdict, self._now() - started)
        else:
            self.ledger.note_reopen(num_tokens - taken.verdict.cached_tokens)
        self._delivery.tell_prompt(taken.verdict.prompt_logprobs)
        self.opened.set()
        self._num_fruitless = 0
        maker.deliver(taken)

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
