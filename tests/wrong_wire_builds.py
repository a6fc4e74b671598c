"""Wrong builds of the streams between services. See `wrong_builds`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from draft_service.service import DraftService, ProposeStream
from protos.stream import Outbox, write_all
from target_service import service
from target_service.service import TargetService, _Stream
from tests.wrong_builds import WrongBuild


def _reader_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def decode(self: Any, context: Any) -> None:
        stream = _Stream(Outbox())
        try:
            while isinstance(data := await context.read(), bytes) and self._take(stream, data):
                await flush(stream, context)
            await flush(stream, context)
        finally:
            self._forget(stream)

    monkeypatch.setattr(TargetService, "_decode", decode)


async def flush(stream: Any, context: Any) -> None:
    while len(stream.outbox):
        message: Any = await stream.outbox.get()
        stream.stamps.fill(message.stamp)
        await context.write(message.SerializeToString())


def _drafters_reader_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def propose(self: Any, context: Any) -> None:
        stream = ProposeStream(self.batcher, self.registry, self.describe, "wrong")
        try:
            while isinstance(data := await context.read(), bytes) and stream.on_message(data):
                await stream.idle.wait()
                await flush(stream, context)
        finally:
            self.registry.leave(stream)

    monkeypatch.setattr(DraftService, "_propose", propose)


def _reader_waits_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    outboxes: list[Outbox] = []

    def noted(outbox: Outbox, write: Any, stamps: Any) -> Any:
        outboxes.append(outbox)
        return write_all(outbox, write, stamps)

    async def read_when_short(read: Any, on_message: Any) -> bool:
        while isinstance(data := await read(), bytes) and on_message(data):
            while len(outboxes[-1]) > 64:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return isinstance(data, bytes)

    monkeypatch.setattr(service, "write_all", noted)
    monkeypatch.setattr(service, "read_all", read_when_short)


_FLOOD = "tests/test_target_service.py::test_neither_side_reads_then_all_drains"

WIRE_BUILDS: dict[str, WrongBuild] = {
    "reader-that-writes": WrongBuild(
        "the target sends its answers in the loop that reads its commands",
        _reader_writes,
        _FLOOD,
        {"stall_seconds": 0.1},
    ),
    "reader-that-waits-for-room": WrongBuild(
        "the target reads no command while it has many answers to send",
        _reader_waits_for_room,
        _FLOOD,
        {"stall_seconds": 0.1},
    ),
    "drafters-reader-that-writes": WrongBuild(
        "the drafter sends its answers in the loop that reads its items",
        _drafters_reader_writes,
        "tests/test_draft_streams.py::test_neither_side_reads_then_all_drains",
        {"stall_seconds": 0.1},
    ),
}
