"""One `Generate` from admission to its Finished message, which is sent on every end."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from coordinator.delivery import Delivery
from coordinator.lookup import LookupIndex
from coordinator.output import ClientStalled, Outlet
from coordinator.request import Request
from coordinator.rounds import Rounds
from coordinator.services import RoundLimits, Services
from coordinator.session import Session
from coordinator.textstream import TextStream
from coordinator.tokenizer import Tokenizer
from protos import coordinator_pb2
from protos.common_pb2 import (
    FINISH_REASON_ABORT,
    FINISH_REASON_ERROR,
    FINISH_REASON_STOP,
    FinishReason,
)
from protos.errors import DliteError

log = logging.getLogger("dlite.coordinator")


@dataclass(frozen=True)
class Prepared:
    """A validated request and the index of its tokens; None when it does not use lookup drafts."""

    request: Request
    lookup: LookupIndex | None


def prepare(request: Request) -> Prepared:
    """Indexes the request's tokens: the part of admission that grows with the prompt."""
    return Prepared(request, LookupIndex(request.token_ids) if request.plan.uses_lookup else None)


class Generation:
    """A running request.

    Args:
        max_queued: messages that may wait for the client.
        on_end: called once, when the request is finished and closed at the target.
    """

    def __init__(
        self,
        prepared: Prepared,
        services: Services,
        limits: RoundLimits,
        tokenizer: Tokenizer,
        max_queued: int,
        on_end: Callable[[Generation], None],
    ) -> None:
        request = self.request = prepared.request
        self.outlet = Outlet(max_queued)
        self._on_end = on_end
        self._now = asyncio.get_running_loop().time
        self._started = self._now()
        prompt, resumed = _split(request)
        self._session = Session([*prompt, *resumed], request.num_prompt_tokens, request.params.max_tokens)
        text = TextStream(tokenizer.decode, request.stop, resumed)
        self._delivery = Delivery(self._session, text, self.outlet, prepared.lookup)
        self._rounds = Rounds(request, self._session, services, limits, self._delivery)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Sends Started and begins to decode."""
        started = coordinator_pb2.Started(
            request_id=self.request.request_id,
            sampling_key=self.request.sampling_key,
            num_prompt_tokens=self.request.num_prompt_tokens,
        )
        self.outlet.put(coordinator_pb2.GenerateResponse(started=started))
        self._task = asyncio.create_task(self._rounds.run(), name=f"rounds {self.request.request_id}")
        self._task.add_done_callback(self._finish)

    def abort(self) -> None:
        """Ends the request as soon as possible; harmless when it has ended."""
        if self._task is not None:
            self._task.cancel()

    async def wait_ended(self) -> None:
        if self._task is not None:
            await asyncio.wait({self._task})

    def _finish(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        self._rounds.close()
        self._on_end(self)
        self._delivery.flush()
        if task.cancelled():
            self._send_finished(FINISH_REASON_ABORT, "aborted")
            self.outlet.close(None)
        elif isinstance(error, ClientStalled):
            self._send_finished(FINISH_REASON_ABORT, str(error))
            self.outlet.close(None)
        elif error is not None:
            shown = error if isinstance(error, DliteError) else _internal(error)
            self._send_finished(FINISH_REASON_ERROR, str(shown))
            self.outlet.close(shown)
        else:
            self._send_finished(self._session.finish_reason, "")
            self.outlet.close(None)

    def _send_finished(self, finish_reason: FinishReason, error: str) -> None:
        session, ledger = self._session, self._rounds.ledger
        finished = coordinator_pb2.Finished(
            finish_reason=finish_reason,
            usage=ledger.usage(session.num_prompt_tokens, session.num_generated, self._now() - self._started),
            ledger=ledger.to_message(),
            stop_string=self._delivery.stop_string,
            error=error,
        )
        if finish_reason == FINISH_REASON_STOP and not self._delivery.stop_string:
            finished.stop_token_id = session.tokens[-1]
        self.outlet.put(coordinator_pb2.GenerateResponse(finished=finished))


def _split(request: Request) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Prompt and resumed tokens."""
    return (
        request.token_ids[: request.num_prompt_tokens],
        request.token_ids[request.num_prompt_tokens :],
    )


def _internal(error: BaseException) -> DliteError:
    """What a client may see of a fault of ours: a reference into the log, no Python message."""
    reference = uuid.uuid4().hex[:12]
    log.error("internal error %s", reference, exc_info=error)
    return DliteError(f"internal error, reference {reference} in the coordinator's log")
