"""Listens to a coordinator's rounds while a load test runs, and writes them to a file."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO

from coordinator.trace.format import Decoder, Header, Lost
from coordinator.trace.record import RoundRecord
from coordinator.trace.remote import watch_rounds
from protos import rpc
from protos.errors import DliteError, InvalidRequest
from protos.security import Address

# Of a report; the file goes on beyond it.
MOST_RECORDS = 500_000
# The coordinator sends what has ended ten times a second.
_SETTLE_SECONDS = 0.4
_START_SECONDS = 10.0


class RoundLog:
    """What was heard. `failure` tells why there is nothing more; empty while there is."""

    def __init__(self, name: str) -> None:
        self.records: list[RoundRecord] = []
        self.num_lost = 0
        self.failure = ""
        self._decoder = Decoder(name)
        self._begun = asyncio.Event()

    @property
    def header(self) -> Header | None:
        return self._decoder.header

    def take(self, data: bytes) -> None:
        """The next bytes of the trace."""
        for found in self._decoder.feed(data):
            if isinstance(found, Lost):
                self.num_lost += found.num_records
            elif len(self.records) < MOST_RECORDS:
                self.records.append(found)
            else:
                self.num_lost += 1
        self._begun.set()

    def fail(self, reason: str) -> None:
        self.failure = reason
        self._begun.set()

    async def wait_begun(self) -> None:
        """Waits until the first bytes are there, or it is clear that none come."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START_SECONDS):
                await self._begun.wait()


@asynccontextmanager
async def watching(address: Address, path: Path | None) -> AsyncIterator[RoundLog]:
    """Listens meanwhile. Rounds that end just before it is left are still heard.

    Args:
        path: a trace of rounds is written there; None: nowhere.

    Raises:
        InvalidRequest: the file cannot be written.
    """
    log = RoundLog(str(address))
    with contextlib.ExitStack() as files:
        file = files.enter_context(_opened(path)) if path is not None else None
        channel = rpc.open_channel(address)
        task = asyncio.create_task(_listen(watch_rounds(channel), log, file))
        try:
            await log.wait_begun()
            yield log
            await asyncio.wait({task}, timeout=_SETTLE_SECONDS)
        finally:
            task.cancel()
            await asyncio.wait({task})
            await channel.close()


async def _listen(pieces: AsyncIterator[bytes], log: RoundLog, file: BinaryIO | None) -> None:
    try:
        async for data in pieces:
            log.take(data)
            if file is not None:
                file.write(data)
    except DliteError as error:
        log.fail(str(error))
    except OSError as error:
        log.fail(f"the trace cannot be written: {error}")
    else:
        log.fail("the coordinator ended the stream of rounds")


def _opened(path: Path) -> BinaryIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("wb", buffering=0)
    except OSError as error:
        raise InvalidRequest(f"cannot write {path}: {error}", field="--save-rounds") from error
