"""The queue between a request and one of its readers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable

from protos import coordinator_pb2
from protos.errors import DliteError, TimedOut


class ClientStalled(TimedOut):
    """The client did not read for too long."""

    reason = "CLIENT_STALLED"


class Outlet:
    """Messages on their way to one reader.

    The rounds look at `is_full` before they ask for more; the queue itself takes everything, so
    what the target has decided is never lost.

    Args:
        max_queued: from so many unread messages on the outlet is full.
        backlog: messages that were said before this reader came.
        on_room: called when a full outlet is no longer full.
    """

    def __init__(
        self,
        max_queued: int,
        backlog: Iterable[coordinator_pb2.GenerateResponse] = (),
        on_room: Callable[[], None] = lambda: None,
    ) -> None:
        self._max_queued = max_queued
        self._messages: deque[coordinator_pb2.GenerateResponse] = deque(backlog)
        self._on_room = on_room
        self._changed = asyncio.Event()
        self._closed = False
        self._error: DliteError | None = None
        self.num_taken = 0

    @property
    def num_queued(self) -> int:
        return len(self._messages)

    @property
    def is_full(self) -> bool:
        return len(self._messages) >= self._max_queued

    @property
    def is_waiting(self) -> bool:
        """Whether it is the reader's turn: the request waits for it, or has nothing more to say."""
        return bool(self._messages) and (self.is_full or self._closed)

    def put(self, message: coordinator_pb2.GenerateResponse) -> None:
        self._messages.append(message)
        self._changed.set()

    def close(self, error: DliteError | None) -> None:
        """Ends the stream after what is queued; with an error its status follows."""
        self._closed = True
        self._error = error
        self._changed.set()

    async def messages(self) -> AsyncIterator[coordinator_pb2.GenerateResponse]:
        """All messages to the end.

        Raises:
            DliteError: the one given to `close`.
        """
        while True:
            while self._messages:
                was_full = self.is_full
                message = self._messages.popleft()
                self.num_taken += 1
                if was_full and not self.is_full:
                    self._on_room()
                yield message
            if self._closed:
                break
            self._changed.clear()
            await self._changed.wait()
        if self._error is not None:
            raise self._error
