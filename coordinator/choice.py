"""One text of a request: its session, its rounds, and its Finished message, which is sent on every end."""

from __future__ import annotations

import asyncio
import logging
import uuid

from coordinator.broadcast import Broadcast
from coordinator.delivery import Delivery
from coordinator.lookup import LookupIndex
from coordinator.output import ClientStalled
from coordinator.request import Request
from coordinator.round_maker import Text
from coordinator.rounds import Rounds
from coordinator.services import Setting
from coordinator.session import Session
from coordinator.textstream import TextStream
from coordinator.tokenizer import Tokenizer
from coordinator.toolstream import ToolStream
from coordinator.tuning import Plan
from protos import coordinator_pb2
from protos.common_pb2 import (
    FINISH_REASON_ABORT,
    FINISH_REASON_ERROR,
    FINISH_REASON_STOP,
    FINISH_REASON_TOOL_CALLS,
    FinishReason,
)
from protos.errors import DliteError

log = logging.getLogger("dlite.coordinator")


class Choice:
    """A text from its Open to its Finished message.

    Args:
        index: which choice; usage counts the prompt in choice 0.
        request: of this choice alone, see `Request.choices`.
        lookup: over the request's tokens; None when it does not use lookup drafts.
    """

    def __init__(
        self,
        index: int,
        request: Request,
        lookup: LookupIndex | None,
        setting: Setting,
        broadcast: Broadcast,
    ) -> None:
        self.index = index
        self.finished: coordinator_pb2.Finished | None = None
        self.error: DliteError | None = None
        self._now = setting.now
        self._started: float | None = None
        self._broadcast = broadcast
        resumed = request.token_ids[request.num_prompt_tokens :]
        self.session = Session(list(request.token_ids), request.num_prompt_tokens, request.params.max_tokens)
        text = TextStream(setting.tokenizer.decode, request.stop, resumed, request.params.min_tokens)
        tools = _tool_stream(request, setting.tokenizer, resumed)
        self._delivery = Delivery(self.session, text, broadcast, lookup, index, tools)
        if request.ended is not None:
            self._delivery.stop_string = request.ended.stop_string
            self.session.finish(request.ended.finish_reason, len(self.session.tokens))
        whole = Text(request, self.session, self._delivery)
        self._rounds = Rounds(whole, setting.targets, setting.limits, setting.now)

    def start(self, queued_seconds: float) -> asyncio.Task[None]:
        """Begins to decode; the caller passes the end of the task to `end`."""
        self._started = self._now() - queued_seconds
        self._rounds.ledger.queue_seconds = queued_seconds
        return asyncio.create_task(self._rounds.run(), name=f"choice {self.index}")

    def hold_started(self, started: coordinator_pb2.GenerateResponse) -> None:
        """Has Started said together with the prompt's log-probabilities."""
        self._delivery.hold_started(started)

    def set_plan(self, plan: Plan) -> None:
        """How to speculate from the next round on."""
        self._rounds.set_plan(plan)
        if plan.uses_lookup:
            self._delivery.index_text()

    async def wait_opened(self) -> None:
        """Waits until the target holds the prompt."""
        await self._rounds.opened.wait()

    def end(self, error: BaseException | None) -> None:
        """Closes the text at the target and says Finished; harmless when it has ended.

        Args:
            error: None when the text is complete; CancelledError when it was aborted.
        """
        if self.finished is not None:
            return
        self._rounds.close()
        fault = self._flush()
        error = fault if error is None else error
        if error is None:
            self._say_finished(self.session.finish_reason, "")
        elif isinstance(error, asyncio.CancelledError):
            self._say_finished(FINISH_REASON_ABORT, str(error) or "aborted")
        elif isinstance(error, ClientStalled):
            self._say_finished(FINISH_REASON_ABORT, str(error))
        else:
            self.error = error if isinstance(error, DliteError) else _internal(error)
            self._say_finished(FINISH_REASON_ERROR, str(self.error))

    def _flush(self) -> Exception | None:
        """Says what is held back. A fault in that is returned: the end must be said all the same."""
        try:
            self._delivery.flush()
        except Exception as fault:
            log.error("held text is lost", exc_info=fault)
            return fault
        return None

    def _say_finished(self, finish_reason: FinishReason, error: str) -> None:
        session, ledger = self.session, self._rounds.ledger
        seconds = 0.0 if self._started is None else self._now() - self._started
        finished = coordinator_pb2.Finished(
            index=self.index,
            finish_reason=finish_reason,
            usage=ledger.usage(session.num_prompt_tokens, session.num_generated, seconds),
            ledger=ledger.to_message(),
            stop_string=self._delivery.stop_string,
            error=error,
        )
        if self.index:
            finished.usage.prompt_tokens = finished.usage.cached_tokens = 0
        if finish_reason == FINISH_REASON_STOP and not self._delivery.stop_string:
            finished.stop_token_id = session.tokens[-1]
        if finish_reason == FINISH_REASON_STOP and self._delivery.num_tool_calls:
            finished.finish_reason = FINISH_REASON_TOOL_CALLS
        self.finished = finished
        self._broadcast.put(coordinator_pb2.GenerateResponse(finished=finished))


def _tool_stream(request: Request, tokenizer: Tokenizer, resumed: tuple[int, ...]) -> ToolStream | None:
    """Finds the tool calls of a text; of one that is resumed the client has what came before."""
    if request.tools is None:
        return None
    stream = ToolStream(
        tokenizer.response_template, tokenizer.answer_start, request.tools, request.sampling_key
    )
    known = TextStream(tokenizer.decode, request.stop, (), request.params.min_tokens)
    stream.feed(known.push(resumed).piece.text)
    return stream


def _internal(error: BaseException) -> DliteError:
    """What a client may see of a fault of ours: a reference into the log, no Python message."""
    reference = uuid.uuid4().hex[:12]
    log.error("internal error %s", reference, exc_info=error)
    return DliteError(f"internal error, reference {reference} in the coordinator's log")
