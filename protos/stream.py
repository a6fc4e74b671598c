"""The two ends of a long stream: one reader task, one writer task, nothing that waits for both.

A reader that awaited a write would deadlock with a peer that does the same, once both send
buffers are full. So `on_message` is synchronous, and whatever it wants to send goes to an
`Outbox`, which never makes the caller wait. Flow control is the protocol's: at most one round of
a request is in flight, which bounds the outbox.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.message import Message

from protos import common_pb2
from protos.splice import Spliced

# Above this size encoding runs off the event loop. Encoding 256 KiB takes some 50 us; handing it to
# another thread and back takes longer (a round with two messages of 224 KiB: 5.2 against 4.3 ms).
OFFLOAD_BYTES = 512 * 1024
_LAST_WRITE_SECONDS = 1.0


# What goes out on a stream: it has a field `stamp`.
StreamMessage = Message | Spliced

# Sizes of so many of our messages are remembered until the peer echoes their stamp.
_MOST_REMEMBERED = 256


class Stamps:
    """Echoes the peer's clock and measures round trips without a common clock.

    A round trip is that of the last message the peer had when it answered, and of the answer; what
    the peer did in between (its compute, its queue, an earlier answer) is what it held, and is no part.

    Args:
        on_round_trip: told every round trip: seconds, and the bytes of both messages together.
    """

    def __init__(
        self,
        now_ns: Callable[[], int] = time.monotonic_ns,
        on_round_trip: Callable[[float, int], None] | None = None,
    ) -> None:
        self._now_ns = now_ns
        self._on_round_trip = on_round_trip
        self._peer_sent_ns = 0
        self._received_ns = 0
        self._sent: deque[tuple[int, int]] = deque(maxlen=_MOST_REMEMBERED)
        self.last_rtt_seconds: float | None = None

    def fill(self, stamp: common_pb2.Stamp) -> None:
        """Sets a stamp just before its message is encoded."""
        now = self._now_ns()
        stamp.sent_ns = now
        if self._peer_sent_ns:
            stamp.echo_sent_ns = self._peer_sent_ns
            stamp.echo_held_ns = now - self._received_ns

    def note_sent(self, stamp: common_pb2.Stamp, num_bytes: int) -> None:
        """Takes the size of a message of ours, once it is encoded."""
        if self._on_round_trip is not None:
            self._sent.append((stamp.sent_ns, num_bytes))

    def note(self, stamp: common_pb2.Stamp, num_bytes: int = 0) -> None:
        """Takes the stamp of a message of so many bytes that has just arrived."""
        now = self._now_ns()
        self._peer_sent_ns = stamp.sent_ns
        self._received_ns = now
        if not stamp.echo_sent_ns:
            return
        round_trip_ns = now - stamp.echo_sent_ns - stamp.echo_held_ns
        self.last_rtt_seconds = max(round_trip_ns, 0) / 1e9
        while self._sent and self._sent[0][0] < stamp.echo_sent_ns:
            self._sent.popleft()
        if self._on_round_trip is not None and self._sent and self._sent[0][0] == stamp.echo_sent_ns:
            self._on_round_trip(self.last_rtt_seconds, self._sent[0][1] + num_bytes)


class Outbox:
    """Messages waiting for the writer task. `put` never waits; `close` lets the writer finish.

    Only for use on one event loop.
    """

    def __init__(self) -> None:
        self._messages: deque[StreamMessage] = deque()
        self._wake = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, message: StreamMessage) -> None:
        """Queues a message; after `close` it is dropped."""
        if not self._closed:
            self._messages.append(message)
            self._wake.set()

    def close(self) -> None:
        self._closed = True
        self._wake.set()

    def abandon(self) -> None:
        """Closes it and drops what is queued."""
        self._messages.clear()
        self.close()

    async def get(self) -> StreamMessage | None:
        """The next message, or None when the outbox is closed and empty."""
        while not self._messages:
            if self._closed:
                return None
            self._wake.clear()
            await self._wake.wait()
        return self._messages.popleft()


async def write_all(outbox: Outbox, write: Callable[[bytes], Awaitable[None]], stamps: Stamps) -> int:
    """The writer task: sends until the outbox is closed and empty.

    Returns:
        The number of bytes sent.
    """
    loop = asyncio.get_running_loop()
    num_bytes = 0
    while (message := await outbox.get()) is not None:
        stamps.fill(message.stamp)  # type: ignore[union-attr]
        if message.ByteSize() > OFFLOAD_BYTES:
            data = await loop.run_in_executor(None, message.SerializeToString)
        else:
            data = message.SerializeToString()
        num_bytes += len(data)
        stamps.note_sent(message.stamp, len(data))  # type: ignore[union-attr]
        await write(data)
    return num_bytes


async def end_writing(outbox: Outbox, writer: asyncio.Future[int]) -> None:
    """Before a stream ends with an error: drops what is queued and waits for the write under way, as far
    as the peer reads. gRPC takes no status beside a message: the peer would be told nothing of use."""
    outbox.abandon()
    await asyncio.wait({writer}, timeout=_LAST_WRITE_SECONDS)


async def read_all(read: Callable[[], Awaitable[Any]], on_message: Callable[[bytes], bool]) -> bool:
    """The reader loop.

    Args:
        read: returns the next message as bytes, or anything else at EOF.
        on_message: takes a message without waiting; returns False to end the stream.

    Returns:
        True when `on_message` ended the stream, False at EOF.
    """
    while True:
        data = await read()
        if not isinstance(data, bytes):
            return False
        if not on_message(data):
            return True
