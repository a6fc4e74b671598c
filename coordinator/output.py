"""The queue between the rounds of a request and its client."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from protos import coordinator_pb2
from protos.errors import DliteError


class ClientStalled(DliteError):
    """The client did not read for too long."""

    reason = "CLIENT_STALLED"


class Outlet:
    """Messages on their way to one client.

    The rounds look at `is_full` before they ask for more; the queue itself takes everything, so
    what the target has decided is never lost.
    """

    def __init__(self, max_queued: int) -> None:
        self._max_queued = max_queued
        self._messages: deque[coordinator_pb2.GenerateResponse] = deque()
        self._changed = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._closed = False
        self._error: DliteError | None = None

    @property
    def num_queued(self) -> int:
        return len(self._messages)

    @property
    def is_full(self) -> bool:
        return len(self._messages) >= self._max_queued

    def put(self, message: coordinator_pb2.GenerateResponse) -> None:
        self._messages.append(message)
        self._changed.set()
        if self.is_full:
            self._has_room.clear()

    def close(self, error: DliteError | None) -> None:
        """Ends the stream after what is queued; with an error its status follows."""
        self._closed = True
        self._error = error
        self._changed.set()

    async def wait_for_room(self, timeout_seconds: float) -> None:
        """Waits until the client has read.

        Raises:
            ClientStalled: it did not.
        """
        if not self.is_full:
            return
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._has_room.wait()
        except TimeoutError:
            raise ClientStalled(
                f"the client left {len(self._messages)} messages unread for {timeout_seconds:g} s"
            ) from None

    async def messages(self) -> AsyncIterator[coordinator_pb2.GenerateResponse]:
        """All messages to the end.

        Raises:
            DliteError: the one given to `close`.
        """
        while True:
            while self._messages:
                message = self._messages.popleft()
                if not self.is_full:
                    self._has_room.set()
                yield message
            if self._closed:
                break
            self._changed.clear()
            await self._changed.wait()
        if self._error is not None:
            raise self._error
