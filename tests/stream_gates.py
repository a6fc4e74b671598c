"""Streams whose ends do not read: the services' reads wait at a gate, and a peer writes a flood."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from protos import rpc

FLOOD_MESSAGES = 400
FLOOD_BYTES = 112 * 1024
# Nothing has moved for so long: a deadlock.
STUCK_SECONDS = 3.0


class GatedContext:
    """A handler's end of a stream that reads only while `gate` is set."""

    def __init__(self, context: rpc.Context, gate: asyncio.Event) -> None:
        self._context = context
        self._gate = gate
        self.write = context.write

    async def read(self) -> object:
        await self._gate.wait()
        return await self._context.read()


def gate_reads(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """From now on the handlers of new services read only while the event is set (it is)."""
    gate = asyncio.Event()
    gate.set()
    right = rpc.duplex

    def duplex(handler: Callable[[rpc.Context], Awaitable[None]]) -> object:
        return right(lambda context: handler(cast(rpc.Context, GatedContext(context, gate))))

    monkeypatch.setattr(rpc, "duplex", duplex)
    return gate


class Flood:
    """Messages that a peer writes as fast as they go, and reads nothing meanwhile.

    Args:
        write: sends the message of a number.
    """

    def __init__(self, write: Callable[[int], Awaitable[None]], numbers: range) -> None:
        self._write = write
        self._numbers = numbers
        self.num_written = 0
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        for number in self._numbers:
            await self._write(number)
            self.num_written += 1

    async def end(self) -> None:
        """Waits until all is written, as long as anything moves."""
        before = -1
        while not self.task.done():
            assert self.num_written > before, f"stuck after {self.num_written} of {len(self._numbers)}"
            before = self.num_written
            await asyncio.wait({self.task}, timeout=STUCK_SECONDS)
        self.task.result()


def named(number: int) -> str:
    """A request id that brings a message, and its answer, to `FLOOD_BYTES`."""
    return f"{number:04}".ljust(FLOOD_BYTES, "x")


def number_of(request_id: str) -> int:
    return int(request_id[:4])
