"""A slower link than the real one: what passes is held back by latency, jitter and bandwidth.

Each direction is one queue: messages leave it in the order they came, never earlier than the line
lets them, and nothing that puts a message into it waits. For measuring how the system behaves over
a distance on a machine that has none.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import random
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from protos.errors import InvalidRequest

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?)([a-z]+)")


@dataclass(frozen=True)
class LinkShape:
    """What is emulated.

    Args:
        rtt_seconds: round trip, half of it each way.
        jitter_seconds: a round trip takes up to so much longer, half of it each way.
        bytes_per_second: each way; None for no limit.
    """

    rtt_seconds: float
    jitter_seconds: float = 0.0
    bytes_per_second: float | None = None


def parse_link(text: str) -> LinkShape:
    """ "20ms,2ms,1gbit" -> round trip, jitter, bandwidth; the last two may be missing.

    Raises:
        InvalidRequest: names what cannot be read.
    """
    parts = [part.strip() for part in text.split(",")]
    if not 1 <= len(parts) <= 3:
        raise InvalidRequest(f"{text!r}: expected RTT[,JITTER[,BANDWIDTH]], such as 20ms,2ms,1gbit")
    rtt, *rest = parts
    return LinkShape(
        _quantity(rtt, _SECONDS),
        _quantity(rest[0], _SECONDS) if rest else 0.0,
        _quantity(rest[1], _BITS) / 8 if len(rest) > 1 else None,
    )


def _quantity(text: str, units: dict[str, float]) -> float:
    match = _NUMBER.fullmatch(text)
    if match is None or match[2] not in units:
        raise InvalidRequest(f"{text!r}: expected a number and one of {', '.join(units)}")
    value = float(match[1]) * units[match[2]]
    if value <= 0.0 and units is _BITS:
        raise InvalidRequest(f"{text!r}: nothing passes a link without bandwidth")
    return value


class OneWay:
    """When messages of one direction arrive. Pure: time and draws are handed in.

    Invariant: arrivals never fall, whatever is drawn; the line carries one message at a time.

    Args:
        draw: uniform numbers in [0, 1).
    """

    def __init__(self, shape: LinkShape, draw: Callable[[], float]) -> None:
        self._shape = shape
        self._draw = draw
        self._free_at = 0.0
        self._last_arrival = 0.0

    def arrival(self, now: float, num_bytes: int) -> float:
        """When a message that is sent now arrives at the other end."""
        shape = self._shape
        carried = num_bytes / shape.bytes_per_second if shape.bytes_per_second else 0.0
        self._free_at = max(now, self._free_at) + carried
        late = (shape.rtt_seconds + self._draw() * shape.jitter_seconds) / 2
        self._last_arrival = max(self._free_at + late, self._last_arrival)
        return self._last_arrival


class DelayLine:
    """Holds messages back and hands them to `sink` on the event loop, in order.

    A thread waits, because the event loop's own timers are rounded up to whole milliseconds.
    """

    def __init__(self, way: OneWay, sink: Callable[[Any], None]) -> None:
        self._way = way
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[tuple[float, Any] | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="emulated link", daemon=True)
        self._thread.start()

    def put(self, message: Any) -> None:
        """Takes bytes, or anything else that ends the stream; never waits."""
        num_bytes = len(message) if isinstance(message, bytes) else 0
        self._queue.put((self._way.arrival(time.monotonic(), num_bytes), message))

    async def close(self) -> None:
        """Forgets what is still on its way."""
        self._closed.set()
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        while (entry := self._queue.get()) is not None:
            pause = entry[0] - time.monotonic()
            if pause > 0:
                self._closed.wait(pause)
            if self._closed.is_set():
                return
            # The loop may be gone when a link is dropped without `close`.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._sink, entry[1])


class Carrier(Protocol):
    """How a stream's messages travel: over the call itself, or slower."""

    async def write(self, data: bytes) -> None: ...

    async def read(self) -> Any: ...

    async def done_writing(self) -> None: ...

    async def close(self) -> None: ...


class PlainCarrier:
    """The call itself."""

    def __init__(self, call: Any) -> None:
        self.write = call.write
        self.read = call.read
        self.done_writing = call.done_writing

    async def close(self) -> None:
        """The call is the caller's."""


class SlowCarrier:
    """A call behind two delay lines."""

    def __init__(self, call: Any, shape: LinkShape, draw: Callable[[], float]) -> None:
        self._call = call
        self._leaving: asyncio.Queue[bytes] = asyncio.Queue()
        self._arrived: asyncio.Queue[Any] = asyncio.Queue()
        self._out = DelayLine(OneWay(shape, draw), self._leaving.put_nowait)
        self._in = DelayLine(OneWay(shape, draw), self._arrived.put_nowait)
        self._num_underway = 0
        self._all_left = asyncio.Event()
        self._all_left.set()
        self._writer = asyncio.create_task(self._write_all())
        self._reader = asyncio.create_task(self._read_all())

    async def write(self, data: bytes) -> None:
        if self._writer.done():
            self._writer.result()
        self._num_underway += 1
        self._all_left.clear()
        self._out.put(data)

    async def read(self) -> Any:
        message = await self._arrived.get()
        if isinstance(message, Exception):
            raise message
        return message

    async def done_writing(self) -> None:
        """Half-closes when everything has left."""
        waiting = asyncio.create_task(self._all_left.wait())
        await asyncio.wait({waiting, self._writer}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        await self._call.done_writing()

    async def close(self) -> None:
        for task in (self._writer, self._reader):
            task.cancel()
        await asyncio.gather(self._writer, self._reader, return_exceptions=True)
        await asyncio.gather(self._out.close(), self._in.close())

    async def _write_all(self) -> None:
        while True:
            await self._call.write(await self._leaving.get())
            self._num_underway -= 1
            if not self._num_underway:
                self._all_left.set()

    async def _read_all(self) -> None:
        message: Any = b""
        while isinstance(message, bytes):
            try:
                message = await self._call.read()
            except Exception as error:  # carried to the reader, who decides what it means
                message = error
            self._in.put(message)


def carry(call: Any, shape: LinkShape | None, draw: Callable[[], float] = random.random) -> Carrier:
    """A call as it is, or over an emulated link."""
    return PlainCarrier(call) if shape is None else SlowCarrier(call, shape, draw)
