"""What of a request has arrived at its caller, and the requests that bring the rest. Pure.

A text goes on from its tokens and its sampling key, at any coordinator, without a gap or a repeat:
noise belongs to a position, and ids are only ever released together with the text they complete.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from coordinator.answer import Answer
from protos import coordinator_pb2
from protos.common_pb2 import FINISH_REASON_ABORT, FINISH_REASON_ERROR
from protos.errors import DliteError

# Longest part of the first request's id in the ids of those that follow.
_MAX_ID_CHARS = 200
_BROKEN = (FINISH_REASON_ABORT, FINISH_REASON_ERROR)


@dataclass(frozen=True)
class Part:
    """A request to send.

    Args:
        index: the choice it continues; None when it is the whole request.
    """

    request: coordinator_pb2.GenerateRequest
    index: int | None


class Progress:
    """One request as its caller sees it.

    Invariant: `answer` holds exactly the `num_messages` that were passed on. An end that broke off
    (aborted, failed) is held back until the stream's status says whether the request may go on elsewhere.
    """

    def __init__(self, request: coordinator_pb2.GenerateRequest) -> None:
        self.answer = Answer()
        self._request = request
        self._held: list[coordinator_pb2.GenerateResponse] = []
        self._num_parts = 0
        self._started = False
        self.num_messages = 0

    def next_part(self) -> Part | None:
        """What to send next; None when every choice has ended."""
        self._num_parts += 1
        if not self._started:
            return Part(self._request, None)
        for index, choice in enumerate(self.answer.choices):
            if not choice.is_finished:
                return Part(self._rest_of(index), index)
        return None

    def take(
        self, message: coordinator_pb2.GenerateResponse, part: Part
    ) -> Iterator[coordinator_pb2.GenerateResponse]:
        """The messages to pass on for one that has arrived."""
        body = message.WhichOneof("body")
        if body == "started" and self._started:
            return
        if part.index is not None and body in ("delta", "finished"):
            getattr(message, body).index = part.index
        if body == "finished" and message.finished.finish_reason in _BROKEN:
            self._held.append(message)
            return
        self._started = True
        self.num_messages += 1
        self.answer.add(message)
        yield message

    def require_end(self, part: Part) -> None:
        """After a stream that ended well.

        Raises:
            DliteError: what the part asked for has not ended.
        """
        choices = self.answer.choices if part.index is None else [self.answer.choices[part.index]]
        if not all(choice.is_finished for choice in choices):
            raise DliteError("the stream ended without a Finished message")

    def drop_held(self) -> None:
        """The request goes on elsewhere: what was held is not the end."""
        self._held.clear()

    def release_held(self) -> Iterator[coordinator_pb2.GenerateResponse]:
        """The broken ends, which are the ends after all."""
        for message in self._held:
            self.answer.add(message)
            yield message
        self._held.clear()

    def _rest_of(self, index: int) -> coordinator_pb2.GenerateRequest:
        choice, request = self.answer.choices[index], coordinator_pb2.GenerateRequest()
        request.CopyFrom(self._request)
        for name in ("n", "seed"):
            request.ClearField(name)
        # Another id: the broken stream's end may not have been noticed yet.
        request.request_id = f"{self.answer.request_id[:_MAX_ID_CHARS]}.{self._num_parts}"
        request.resume.token_ids.extend(choice.token_ids)
        request.resume.prompt_token_ids.extend(self.answer.prompt_token_ids)
        request.resume.sampling_key = self.answer.sampling_keys[index]
        return request
