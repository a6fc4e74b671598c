"""Committed tokens on their way out: text, lookup index, client. One for each text."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.broadcast import Broadcast
from coordinator.lookup import LookupIndex
from coordinator.session import Session
from coordinator.textstream import TextStream
from coordinator.toolstream import ToolStream, ToolUpdate
from protos import common_pb2, coordinator_pb2
from protos.common_pb2 import FINISH_REASON_STOP


class Delivery:
    """Gives the client what the session committed, up to a stop string.

    Args:
        tools: takes tool calls out of the text; None without tools.
        lookup: kept equal to the committed tokens; None when the request does not use it.
        index: of the choice.
    """

    def __init__(
        self,
        session: Session,
        text: TextStream,
        outlet: Broadcast,
        lookup: LookupIndex | None,
        index: int = 0,
        tools: ToolStream | None = None,
    ) -> None:
        self.stop_string = ""
        self.outlet = outlet
        self._session = session
        self._text = text
        self._lookup = lookup
        self._index = index
        self._tools = tools
        self._num_sent = session.num_generated
        # Of the tokens that were taken and are not sent yet.
        self._logprobs: list[common_pb2.PositionLogprobs] = []
        self._started: coordinator_pb2.GenerateResponse | None = None

    @property
    def num_tool_calls(self) -> int:
        return self._tools.num_calls if self._tools is not None else 0

    @property
    def awaits_prompt_logprobs(self) -> bool:
        return self._started is not None

    def hold_started(self, started: coordinator_pb2.GenerateResponse) -> None:
        """Keeps the Started message until the prompt's log-probabilities are known."""
        self._started = started

    def tell_prompt(self, prompt_logprobs: Sequence[common_pb2.PositionLogprobs]) -> None:
        """Sends a Started message that was held; harmless without one."""
        if self._started is not None:
            self._started.started.prompt_logprobs.extend(prompt_logprobs)
            self.outlet.put(self._started)
            self._started = None

    def take(self, tokens: tuple[int, ...], logprobs: Sequence[common_pb2.PositionLogprobs] = ()) -> int:
        """Takes the tokens that the session has just committed; finishes it at a stop string.

        Args:
            logprobs: of each token, or empty.

        Returns:
            How many of the tokens stand.
        """
        self._logprobs.extend(logprobs)
        update = self._text.push(tokens)
        if update.stop:
            self.stop_string = update.stop
            num_cut = len(tokens) - update.num_used
            self._session.finish(FINISH_REASON_STOP, len(self._session.tokens) - num_cut)
        if self._lookup is not None:
            self._lookup.extend(tokens[: update.num_used])
        self._send(update.piece.token_ids, update.piece.text)
        if self._session.is_finished and not update.stop:
            self.flush()
            if self.stop_string:
                self._session.finish(FINISH_REASON_STOP, len(self._session.tokens))
        return update.num_used

    def flush(self) -> None:
        """Gives the client what was held back; for the end of the text, and harmless after it."""
        self.tell_prompt(())
        if not self.stop_string:
            update = self._text.flush()
            self.stop_string = update.stop
            self._send(update.piece.token_ids, update.piece.text)
        if self._tools is not None and self._session.is_finished:
            self._say((), self._tools.finish())

    def index_text(self) -> None:
        """Begins to find lookup proposals, if that is not done yet."""
        if self._lookup is None:
            self._lookup = LookupIndex(self._session.tokens)

    def lookup(self, k: int) -> tuple[tuple[int, ...], int]:
        """A lookup proposal and the length of its match, or nothing and 0."""
        return self._lookup.find(k) if self._lookup is not None else ((), 0)

    def _send(self, token_ids: tuple[int, ...], text: str) -> None:
        self._say(token_ids, self._tools.feed(text) if self._tools is not None else ToolUpdate(text))

    def _say(self, token_ids: tuple[int, ...], update: ToolUpdate) -> None:
        if not token_ids and not update.text and not update.calls:
            return
        delta = coordinator_pb2.Delta(
            index=self._index,
            first_token_index=self._num_sent,
            token_ids=token_ids,
            text=update.text,
            tool_calls=update.calls,
            logprobs=self._logprobs[: len(token_ids)],
        )
        del self._logprobs[: len(token_ids)]
        self._num_sent += len(token_ids)
        self.outlet.put(coordinator_pb2.GenerateResponse(delta=delta))
