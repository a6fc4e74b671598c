"""The gRPC face of the draft service: raw-bytes handlers, the life of a stream, start and stop."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from draft_service import wire
from draft_service.batcher import Batcher
from draft_service.config import DraftConfig
from draft_service.proposal import ProposesTokens
from draft_service.streams import ProposeStream, StreamRegistry
from protos import common_pb2, draft_pb2, rpc
from protos.errors import StaleRound, Unavailable
from protos.stream import read_all, write_all

SERVICE_NAME = "dlite.v1.Draft"
_STOP_GRACE_SECONDS = 2.0


class DraftService:
    """Serves one drafter.

    Args:
        drafter: a `Drafter` or a `ReplayDrafter`.
        max_batch_items, max_queued_items: see `Batcher`.
        num_threads: told in the description.
        now_seconds: monotonic clock.
    """

    def __init__(
        self,
        drafter: ProposesTokens,
        max_batch_items: int = 64,
        max_queued_items: int = 4096,
        num_threads: int = 0,
        now_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._drafter = drafter
        self._num_threads = num_threads
        self._instance_id = uuid.uuid4().hex
        self.batcher = Batcher(drafter, max_batch_items, max_queued_items, now_seconds)
        self.registry = StreamRegistry()
        self._open: set[ProposeStream] = set()

    def handlers(self) -> rpc.Service:
        """What `rpc.start_server` serves."""
        methods = {
            "Propose": rpc.duplex(self._propose),
            "GetDescription": rpc.unary(common_pb2.DescribeRequest, self._get_description),
        }
        return rpc.Service(SERVICE_NAME, methods)

    def describe(self) -> common_pb2.Describe:
        return wire.write_description(self._drafter.description, self._num_threads)

    def end_streams(self) -> None:
        """Ends every stream in peace: what is queued in its outbox is sent, then an end frame."""
        for stream in self._open:
            stream.end(None)

    async def _get_description(
        self, _request: common_pb2.DescribeRequest, _context: rpc.Context
    ) -> common_pb2.Describe:
        return self.describe()

    async def _propose(self, context: rpc.Context) -> None:
        stream = ProposeStream(self.batcher, self.registry, self.describe, self._instance_id)
        self._open.add(stream)
        reader = _task(read_all(context.read, stream.on_message))
        writer = _task(write_all(stream.outbox, context.write, stream.stamps))
        try:
            await _converse(stream, reader, writer)
        finally:
            # Nothing is awaited here: after a cancel every await would be cancelled too.
            self._open.discard(stream)
            self.registry.leave(stream)
            self.batcher.discard(stream)
            reader.cancel()
            writer.cancel()


async def _converse(stream: ProposeStream, reader: asyncio.Task[bool], writer: asyncio.Task[int]) -> None:
    """Waits for a stream's end and ends it the right way.

    Raises:
        DliteError: the peer broke the protocol, went away, or was replaced.
    """
    await _first(reader, writer, stream.ending)
    if reader.done() and not stream.ending.done():
        if not reader.result():
            raise StaleRound("the stream ended without an end frame: its requests are dropped")
        idle = _task(stream.idle.wait())
        await _first(idle, writer, stream.ending)
        idle.cancel()
    if stream.ending.done():
        error = stream.ending.result()
        if error is not None:
            raise error
    elif writer.done():
        writer.result()
        raise Unavailable("the peer stopped reading")
    stream.outbox.put(draft_pb2.ProposalBatch(end=common_pb2.End(reason="done")))
    stream.outbox.close()
    await writer


async def _first(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


def _task(work: Any) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.ensure_future(work)
    # A task that lost the race may end with an error that nobody needs; take it off the log.
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


@dataclass(frozen=True, eq=False)
class RunningDraft:
    """A started, ready draft service."""

    address: str
    service: DraftService
    server: rpc.RunningServer

    async def stop(self) -> None:
        """Ends streams, stops listening and lets the running batch end."""
        self.service.end_streams()
        await self.server.stop(_STOP_GRACE_SECONDS)
        await self.service.batcher.stop()


async def start_draft_service(config: DraftConfig) -> RunningDraft:
    """Loads, self-tests and serves what the config names; ready when it returns.

    Raises:
        InvalidRequest: a path is wrong.
        ContractMismatch: the checkpoint is damaged, does not fit its target or fails the self-test.
        Unavailable: the address is taken.
    """
    from draft_service.loader import open_drafter, set_threads

    num_threads = set_threads(config.threads)
    drafter = await asyncio.get_running_loop().run_in_executor(None, open_drafter, config)
    service = DraftService(drafter, config.max_batch_items, config.max_queued_items, num_threads)
    return await serve(service, config.address)


async def serve(service: DraftService, address: str) -> RunningDraft:
    """Self-tests and serves a drafter that is already made.

    Raises:
        ContractMismatch: the self-test failed.
        Unavailable: the address is taken.
    """
    running = await rpc.start_server(service.handlers(), address)
    try:
        await service.batcher.start()
        await running.set_ready(True)
    except BaseException:
        await _both(running.stop(0), service.batcher.stop())
        raise
    return RunningDraft(running.address, service, running)


async def _both(first: Awaitable[None], second: Awaitable[None]) -> None:
    await first
    await second
