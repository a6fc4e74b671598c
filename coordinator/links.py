"""A long stream to one service that comes back by itself.

One reader task, one writer task (see `protos.stream`); every new stream has a higher generation, and
the service frees what the older one held. What the messages mean is the peer's business.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import grpc
from google.protobuf.message import Message

from coordinator.emulation import Carrier, LinkShape, carry
from protos import common_pb2, rpc
from protos.errors import ContractMismatch
from protos.security import Address
from protos.stream import Outbox, Stamps, StreamMessage, read_all, write_all

log = logging.getLogger("dlite.links")

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0
_MISMATCH_PAUSE_SECONDS = 5.0
_WELCOME_SECONDS = 10.0
_END_SECONDS = 1.0

T = TypeVar("T")


class ItemOutbox(Outbox, Generic[T]):
    """An outbox whose items leave together: all that was queued while the writer was busy, up to
    `max_bytes`, in one message. Plain messages go first, the end message last."""

    def __init__(self, pack: Callable[[list[T]], StreamMessage], max_bytes: int) -> None:
        super().__init__()
        self._pack = pack
        self._max_bytes = max_bytes
        self._items: deque[tuple[T, int]] = deque()
        self._last: Message | None = None

    def put_item(self, item: T, num_bytes: int) -> None:
        if not self._closed:
            self._items.append((item, num_bytes))
            self._wake.set()

    def finish(self, last: Message) -> None:
        """Closes the outbox; `last` goes out behind everything."""
        self._last = last
        self.close()

    async def get(self) -> StreamMessage | None:
        while True:
            if self._messages:
                return self._messages.popleft()
            if self._items:
                return self._pack(self._take_items())
            if self._closed:
                last, self._last = self._last, None
                return last
            self._wake.clear()
            await self._wake.wait()

    def _take_items(self) -> list[T]:
        items = [self._items[0][0]]
        room = self._max_bytes - self._items.popleft()[1]
        while self._items and self._items[0][1] <= room:
            item, num_bytes = self._items.popleft()
            room -= num_bytes
            items.append(item)
        return items


def hello_of(coordinator_id: str, generation: int) -> common_pb2.Hello:
    """The first message of a stream, whatever it carries."""
    protocol = common_pb2.Protocol(major=rpc.PROTOCOL_MAJOR, minor=rpc.PROTOCOL_MINOR)
    return common_pb2.Hello(coordinator_id=coordinator_id, stream_generation=generation, protocol=protocol)


class StreamPeer(Protocol):
    """What a stream carries. All methods are called on the event loop and never wait."""

    def begin(self, generation: int, stamps: Stamps) -> Outbox:
        """A new stream: returns its outbox with the Hello in it."""
        ...

    def on_message(self, data: bytes) -> bool:
        """Takes a message; False ends the stream. May raise ContractMismatch."""
        ...

    def on_round_trip(self, rtt_seconds: float, num_bytes: int) -> None:
        """Takes a measured round trip (see `Stamps`)."""
        ...

    def end(self) -> None:
        """Says goodbye: puts the end frame into the outbox and closes it."""
        ...

    def on_lost(self, reason: str) -> None:
        """The stream is over; also called when it never came up."""
        ...

    @property
    def is_connected(self) -> bool: ...


class StreamLink:
    """Keeps one stream alive until `stop`.

    Args:
        emulated: what the link shall be like; None for as it is.
    """

    def __init__(
        self, address: Address, method: str, peer: StreamPeer, emulated: LinkShape | None = None
    ) -> None:
        self._address = address
        self._method = method
        self._peer = peer
        self._emulated = emulated
        self._generation = 0
        self._stopping = False
        self._call: Any = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"link {self._method}")

    def cut(self) -> None:
        """Gives the stream up; a new one follows."""
        if self._call is not None:
            self._call.cancel()

    async def stop(self) -> None:
        """Ends the stream with an end frame, as far as the service takes it."""
        self._stopping = True
        if self._task is None:
            return
        self._peer.end()
        done, _ = await asyncio.wait({self._task}, timeout=2 * _END_SECONDS)
        if not done:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        channel = rpc.open_channel(self._address)
        pause = _FIRST_PAUSE_SECONDS
        try:
            while not self._stopping:
                reason, was_connected = await self._one_stream(channel)
                self._peer.on_lost(reason)
                if self._stopping:
                    return
                log.warning("stream to %s: %s", self._address, reason)
                pause = _FIRST_PAUSE_SECONDS if was_connected else min(2 * pause, _LONGEST_PAUSE_SECONDS)
                mismatch = reason.startswith(MISMATCH)
                await asyncio.sleep(_MISMATCH_PAUSE_SECONDS if mismatch else pause)
        finally:
            self._peer.on_lost("stopped")
            await channel.close()

    async def _one_stream(self, channel: grpc.aio.Channel) -> tuple[str, bool]:
        """Runs one stream to its end; returns why it ended and whether it was ever up."""
        self._generation += 1
        stamps = Stamps(on_round_trip=self._peer.on_round_trip)
        outbox = self._peer.begin(self._generation, stamps)
        call: Any = channel.stream_stream(self._method)()
        self._call = call
        carrier = carry(call, self._emulated)
        writer = asyncio.create_task(write_all(outbox, carrier.write, stamps))
        reader = asyncio.create_task(read_all(carrier.read, self._peer.on_message))
        loop = asyncio.get_running_loop()
        welcome_timer = loop.call_later(_WELCOME_SECONDS, self._cut_unless_welcome)
        try:
            await asyncio.wait({writer, reader}, return_when=asyncio.FIRST_COMPLETED)
            if self._stopping and writer.done() and not reader.done():
                await self._half_close(carrier, reader)
            return _why_ended(writer, reader), self._peer.is_connected
        finally:
            welcome_timer.cancel()
            self._call = None
            for task in (writer, reader):
                task.cancel()
            await asyncio.gather(writer, reader, return_exceptions=True)
            await carrier.close()
            call.cancel()

    async def _half_close(self, carrier: Carrier, reader: asyncio.Task[bool]) -> None:
        """After the end frame: lets the service end the stream, so that the frame is not overtaken."""
        await carrier.done_writing()
        await asyncio.wait({reader}, timeout=_END_SECONDS)

    def _cut_unless_welcome(self) -> None:
        if not self._peer.is_connected:
            self.cut()


MISMATCH = "does not fit: "


def _why_ended(writer: asyncio.Task[int], reader: asyncio.Task[bool]) -> str:
    for task in (reader, writer):
        if not task.done():
            continue
        if task.cancelled():
            return "cut"
        error = task.exception()
        if isinstance(error, ContractMismatch):
            return f"{MISMATCH}{error}"
        if isinstance(error, grpc.aio.AioRpcError):
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:  # the service's own ContractMismatch
                return f"{MISMATCH}{error.details()}"
            return f"{error.code().name}: {error.details()}"
        if error is not None:
            log.error("stream failed", exc_info=error)
            return f"failed: {type(error).__name__}"
    if reader.done():
        return "ended by the service" if reader.result() else "the service went away"
    return "ended"
