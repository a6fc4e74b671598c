"""What the rounds need of the two services. The links implement these over gRPC; anything else that
does the same (an engine in this process, a scripted drafter) plugs in here."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from coordinator.tuner.link_estimate import LinkEstimate
from protos import common_pb2, draft_pb2, target_pb2


@dataclass(frozen=True)
class StreamLost:
    """The stream to the target ended: whatever was sent on it may or may not have been done."""

    reason: str


Signal = target_pb2.Event | StreamLost


class Inbox:
    """Events of one request, in order. `put` never waits; one reader."""

    def __init__(self) -> None:
        self._signals: deque[Signal] = deque()
        self._wake = asyncio.Event()

    def put(self, signal: Signal) -> None:
        self._signals.append(signal)
        self._wake.set()

    def clear(self) -> None:
        self._signals.clear()

    async def get(self, timeout_seconds: float) -> Signal | None:
        """The next signal, or None when the time is over."""
        if not self._signals:
            self._wake.clear()
            try:
                async with asyncio.timeout(timeout_seconds):
                    await self._wake.wait()
            except TimeoutError:
                return None
        return self._signals.popleft()


class TargetPort(Protocol):
    """The target service. Commands go out at once and in order; events arrive in inboxes."""

    @property
    def describe(self) -> common_pb2.Describe:
        """What the target is. Known once the port was connected for the first time."""
        ...

    @property
    def is_connected(self) -> bool: ...

    @property
    def last_heard_seconds(self) -> float:
        """When the target last said anything at all, on the clock of the rounds."""
        ...

    def attach(self, request_id: str, inbox: Inbox) -> None:
        """From now on the request's events, and the loss of the stream, go to this inbox."""
        ...

    def send(self, commands: Sequence[target_pb2.Command]) -> None:
        """Sends commands; without a connection they are dropped (the inboxes have heard of it)."""
        ...

    def close(self, request_id: str, epoch: int, keep_length: int) -> None:
        """Detaches the request and closes it at the target, again until it says Closed."""
        ...

    def suspect(self) -> None:
        """Says that the target owes an answer for too long: the stream is cut."""
        ...


class DraftPort(Protocol):
    """The draft service."""

    @property
    def describe(self) -> common_pb2.Describe | None:
        """What the drafter is; None before the first connection."""
        ...

    @property
    def refusal(self) -> str:
        """Why the drafter that answered there is not used; empty otherwise."""
        ...

    @property
    def is_available(self) -> bool:
        """Whether asking is worth while now: connected, fitting and answering."""
        ...

    def propose(self, item: draft_pb2.ProposeItem, cohort: int = 0) -> Awaitable[draft_pb2.Proposal]:
        """Asks for one proposal; items asked for together travel together.

        Args:
            cohort: questions of one number are best one batch, because they will be verified together; 0:
                of no cohort.

        Raises (when awaited):
            Unavailable: no drafter, or its stream ended before the answer.
        """
        ...

    def note_failure(self, asked: Awaitable[draft_pb2.Proposal]) -> None:
        """Says that the answer to this was late or of no use: whoever was asked is left alone for a while.

        Args:
            asked: what `propose` gave.
        """
        ...


@runtime_checkable
class MeasuredPort(Protocol):
    """A port whose link can be measured; one in this process has no link."""

    def measure_into(self, estimate: LinkEstimate) -> None:
        """From now on round trips are told to this estimate."""
        ...
