"""One request as it went, and the times that follow from it. Pure; all times of one monotonic clock.

Latencies count from the *scheduled* arrival, so that a stalled server is seen by those who wait for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

from coordinator.answer import Answer
from protos import coordinator_pb2
from protos.common_pb2 import FINISH_REASON_ABORT, FINISH_REASON_ERROR, FinishReason
from protos.errors import DliteError

EMPTY = "EMPTY"
CUT = "CUT"


class Status(Enum):
    OK = "ok"
    FAILED = "failed"
    CANCELLED = "cancelled"  # by this client, on purpose


@dataclass(frozen=True)
class Chunk:
    """Tokens that came in one message."""

    seconds: float
    num_tokens: int


@dataclass(frozen=True)
class Place:
    """Which request: session and turn are the same in both arms."""

    session: int
    turn: int


@dataclass(frozen=True)
class Sample:
    """One request.

    Args:
        scheduled_seconds: when it was to be sent; started: when it was; ended: its last message.
        chunks: messages with tokens; the first is the first token's, whatever came before it.
        error: empty, or the reason of the failure first.
    """

    place: Place
    scheduled_seconds: float
    started_seconds: float
    ended_seconds: float
    status: Status
    chunks: tuple[Chunk, ...] = ()
    error: str = ""
    text: str = ""
    token_ids: tuple[int, ...] = ()
    num_prompt_tokens: int = 0
    finished: coordinator_pb2.Finished = field(default_factory=coordinator_pb2.Finished)

    @property
    def is_ok(self) -> bool:
        return self.status is Status.OK

    @property
    def num_tokens(self) -> int:
        return sum(chunk.num_tokens for chunk in self.chunks)

    @property
    def queue_seconds(self) -> float:
        """Waiting for a place in this client."""
        return self.started_seconds - self.scheduled_seconds

    @property
    def ttft_seconds(self) -> float | None:
        return self.chunks[0].seconds - self.scheduled_seconds if self.chunks else None

    @property
    def e2el_seconds(self) -> float:
        return self.ended_seconds - self.scheduled_seconds

    @property
    def tpot_seconds(self) -> float | None:
        """Seconds a token after the first chunk; None when there are none."""
        if not self.chunks or (num_later := self.num_tokens - self.chunks[0].num_tokens) == 0:
            return None
        return (self.chunks[-1].seconds - self.chunks[0].seconds) / num_later

    @property
    def itl_seconds(self) -> tuple[float, ...]:
        """Gaps between chunks: with speculation a chunk has several tokens."""
        return tuple(later.seconds - earlier.seconds for earlier, later in pairwise(self.chunks))


class Recording:
    """Collects the messages of one request and says at the end how it went."""

    def __init__(self, place: Place, scheduled_seconds: float, started_seconds: float) -> None:
        self._place = place
        self._scheduled = scheduled_seconds
        self._started = started_seconds
        self._answer = Answer()
        self._chunks: list[Chunk] = []

    @property
    def num_tokens(self) -> int:
        return sum(chunk.num_tokens for chunk in self._chunks)

    def add(self, message: coordinator_pb2.GenerateResponse, now: float) -> None:
        """Raises DliteError: the stream has a gap."""
        self._answer.add(message)
        if message.WhichOneof("body") == "delta" and message.delta.token_ids:
            self._chunks.append(Chunk(now, len(message.delta.token_ids)))

    def end(self, now: float, error: DliteError | None = None, cancelled: bool = False) -> Sample:
        """The request is over: by its stream's end, by an error, or because this client left."""
        reason = "" if cancelled else self._failure(error)
        status = Status.CANCELLED if cancelled else Status.FAILED if reason else Status.OK
        return Sample(
            place=self._place,
            scheduled_seconds=self._scheduled,
            started_seconds=self._started,
            ended_seconds=now,
            status=status,
            chunks=tuple(self._chunks),
            error=reason,
            text=self._answer.text,
            token_ids=tuple(self._answer.token_ids),
            num_prompt_tokens=self._answer.num_prompt_tokens,
            finished=self._answer.finished,
        )

    def _failure(self, error: DliteError | None) -> str:
        if error is not None:
            return f"{error.reason}: {error}"
        if not self._answer.is_finished:
            return f"{CUT}: the stream ended without a Finished message"
        reason = self._answer.finish_reason
        if reason in (FINISH_REASON_ABORT, FINISH_REASON_ERROR):
            return f"{FinishReason.Name(reason)}: {self._answer.finished.error}"
        return "" if self._chunks else f"{EMPTY}: finished without a token"
