"""The gRPC face of the draft service: raw-bytes handlers and the life of a stream."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from draft_service import wire
from draft_service.batcher import Answer, Batcher
from draft_service.proposal import ProposesTokens
from draft_service.streams import StreamRegistry
from protos import common_pb2, draft_pb2, rpc
from protos.errors import Busy, ContractMismatch, DliteError, InvalidRequest, StaleRound, Unavailable
from protos.stream import Outbox, Stamps, end_writing, read_all, write_all

SERVICE_NAME = "dlite.v1.Draft"


class ProposeStream:
    """What one stream's reader does with messages, and where its answers go. Never waits.

    Invariant: `num_waiting` tickets of this stream are queued or being computed.
    """

    def __init__(
        self,
        batcher: Batcher,
        registry: StreamRegistry,
        welcome: Callable[[], common_pb2.Describe],
        instance_id: str,
    ) -> None:
        self._batcher = batcher
        self._registry = registry
        self._welcome = welcome
        self._instance_id = instance_id
        self.outbox = Outbox()
        self.stamps = Stamps()
        self.coordinator_id = ""
        self.generation = 0
        self.num_waiting = 0
        self._greeted = False
        # Done: the service ends this stream, with an error or (None) in peace.
        self.ending: asyncio.Future[DliteError | None] = asyncio.get_running_loop().create_future()
        # Set while nothing of this stream is queued or computed.
        self.idle = asyncio.Event()
        self.idle.set()

    def end(self, error: DliteError | None) -> None:
        """Asks the handler to end this stream."""
        if not self.ending.done():
            self.ending.set_result(error)

    def on_message(self, data: bytes) -> bool:
        """Takes one message; False when it is the end frame.

        Raises:
            InvalidRequest: not a message, or not one that may come now.
            ContractMismatch: another protocol major.
            StaleRound: an old generation.
        """
        message = rpc.parse(draft_pb2.ProposeBatch, data)
        self.stamps.note(message.stamp)
        kind: str | None = message.WhichOneof("body")
        if kind is None:
            raise InvalidRequest("a stream message has one of hello, items, end", field="body")
        if not self._greeted and kind != "hello":
            raise InvalidRequest(f"the first message of a stream is hello, this is {kind}", field="body")
        if kind == "hello":
            self._greet(message.hello)
        elif kind == "items":
            refusals = [refusal for item in message.items.items if (refusal := self._queue(item)) is not None]
            if refusals:  # all in one message: what is refused must not cost more than what is served
                proposals = draft_pb2.ProposalList(proposals=refusals)
                self.outbox.put(draft_pb2.ProposalBatch(proposals=proposals))
        return kind != "end"

    def deliver(self, answers: Sequence[Answer]) -> None:
        """Sends answers; those that came too late are only counted."""
        message = wire.write_answers(answers)
        if message is not None:
            self.outbox.put(message)
        self.num_waiting -= len(answers)
        if not self.num_waiting:
            self.idle.set()

    def _greet(self, hello: common_pb2.Hello) -> None:
        if self._greeted:
            raise InvalidRequest("a stream has one hello", field="hello")
        if not hello.coordinator_id:
            raise InvalidRequest("the coordinator has no id", field="hello.coordinator_id")
        if hello.protocol.major != rpc.PROTOCOL_MAJOR:
            raise ContractMismatch(
                f"protocol {hello.protocol.major}, this service speaks {rpc.PROTOCOL_MAJOR}: "
                "run the same release on both sides",
                field="hello.protocol.major",
            )
        self.generation = hello.stream_generation
        self._registry.join(self, hello.coordinator_id, hello.stream_generation)
        self.coordinator_id = hello.coordinator_id
        self._greeted = True
        welcome = common_pb2.Welcome(instance_id=self._instance_id, describe=self._welcome())
        self.outbox.put(draft_pb2.ProposalBatch(welcome=welcome))

    def _queue(self, message: draft_pb2.ProposeItem) -> draft_pb2.Proposal | None:
        """Takes an item; the refusal if it is none."""
        try:
            self._batcher.submit(wire.read_ticket(message, self, self._batcher.now_seconds()))
        except (InvalidRequest, Busy) as error:
            return wire.write_refusal(message, error)
        self.num_waiting += 1
        self.idle.clear()
        return None


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
        except DliteError:
            await end_writing(stream.outbox, writer)
            raise
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
