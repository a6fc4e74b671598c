"""One coordinator's long stream, and the rule that a newer stream of it ends the older one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from draft_service import wire
from draft_service.batcher import Answer, Batcher
from protos import common_pb2, draft_pb2, rpc
from protos.errors import Busy, ContractMismatch, DliteError, InvalidRequest, StaleRound
from protos.stream import Outbox, Stamps


class StreamRegistry:
    """The open streams by coordinator; at most one each, the one of the highest generation."""

    def __init__(self) -> None:
        self._streams: dict[str, ProposeStream] = {}

    def join(self, stream: ProposeStream, coordinator_id: str, generation: int) -> None:
        """Makes this the coordinator's stream and ends its older one.

        Raises:
            StaleRound: a stream of this or a higher generation is open.
        """
        held = self._streams.get(coordinator_id)
        if held is not None and held.generation >= generation:
            raise StaleRound(
                f"generation {generation} of {coordinator_id!r} comes after {held.generation}",
                field="hello.stream_generation",
            )
        if held is not None:
            held.end(StaleRound(f"generation {generation} of {coordinator_id!r} replaces {held.generation}"))
        self._streams[coordinator_id] = stream

    def leave(self, stream: ProposeStream) -> None:
        """Forgets a stream; nothing happens when a newer one has taken its place."""
        if self._streams.get(stream.coordinator_id) is stream:
            del self._streams[stream.coordinator_id]

    def __len__(self) -> int:
        return len(self._streams)


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
            for item in message.items.items:
                self._queue(item)
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

    def _queue(self, message: draft_pb2.ProposeItem) -> None:
        try:
            self._batcher.submit(wire.read_ticket(message, self, self._batcher.now_seconds()))
        except (InvalidRequest, Busy) as error:
            self.outbox.put(wire.write_refusal(message, error))
            return
        self.num_waiting += 1
        self.idle.clear()
