"""The gRPC face of the target: streams in front of the engine's thread.

The reader of a stream parses and posts; the engine's thread answers through `call_soon_threadsafe`
into the stream's outbox; the writer sends. No side waits for another.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

from protos import common_pb2, errors, rpc, target_pb2
from protos.liveness import Liveness
from protos.security import SecurityFiles, ServerSecurity
from protos.stream import Outbox, Stamps, end_writing, read_all, write_all
from target_service import wire, wire_commands
from target_service.build import BuiltTarget, build
from target_service.commands import Event
from target_service.config import TargetConfig
from target_service.engine_thread import DropCoordinator, EngineThread
from target_service.opens import OpenParts

SERVICE_NAME = "dlite.v1.Target"
_CHUNK_BYTES = 512 * 1024


@dataclass(eq=False)
class _Stream:
    """One coordinator's stream. `ended` is set when a newer one takes its place."""

    outbox: Outbox
    stamps: Stamps = field(default_factory=Stamps)
    opens: OpenParts = field(default_factory=OpenParts)
    coordinator_id: str = ""
    generation: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class TargetService:
    """Handlers of dlite.v1.Target. Create it on the event loop that serves it.

    Args:
        built: the engine and its description; the engine's thread starts here.
    """

    def __init__(self, built: BuiltTarget) -> None:
        self._built = built
        self._describe = wire.describe_to(built.description)
        self._loop = asyncio.get_running_loop()
        self._streams: dict[str, _Stream] = {}
        self.failed = asyncio.Event()
        threads = built.description.threads
        self.engine_thread = EngineThread(built.engine, self._emit, threads, self._on_failure)
        self.engine_thread.start()

    def service(self) -> rpc.Service:
        """What `rpc.start_server` serves."""
        return rpc.Service(
            SERVICE_NAME,
            {
                "Decode": rpc.duplex(self._decode),
                "GetDescription": rpc.unary(common_pb2.DescribeRequest, self._get_description),
                "GetTokenizer": rpc.server_stream(target_pb2.GetTokenizerRequest, self._get_tokenizer),
            },
        )

    # ---- the engine's thread --------------------------------------------------------------------

    def _emit(self, coordinator_id: str, events: list[Event]) -> None:
        messages = wire.messages_to(events, self._built.feature_dtype)
        self._loop.call_soon_threadsafe(self._deliver, coordinator_id, messages)

    def _on_failure(self, _error: BaseException) -> None:
        self._loop.call_soon_threadsafe(self.failed.set)

    # ---- the event loop -------------------------------------------------------------------------

    def _deliver(self, coordinator_id: str, messages: list[target_pb2.TargetEvent]) -> None:
        stream = self._streams.get(coordinator_id)
        if stream is not None:
            for message in messages:
                stream.outbox.put(message)

    async def _decode(self, context: rpc.Context) -> None:
        stream = _Stream(Outbox())
        writer = asyncio.create_task(write_all(stream.outbox, context.write, stream.stamps))
        reader = asyncio.create_task(read_all(context.read, lambda data: self._take(stream, data)))
        superseded = asyncio.create_task(stream.ended.wait())
        tasks = (reader, superseded, writer)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if superseded.done():
                raise errors.StaleRound("a newer stream of this coordinator has taken over")
            if reader.done() and reader.result():
                stream.outbox.close()
                await writer
        except errors.DliteError:
            await end_writing(stream.outbox, writer)
            raise
        finally:
            self._forget(stream)
            for task in tasks:
                task.cancel()

    def _take(self, stream: _Stream, data: bytes) -> bool:
        """Takes one message without waiting; False after the End frame."""
        message = rpc.parse(target_pb2.TargetCommand, data)
        stream.stamps.note(message.stamp)
        body = message.WhichOneof("body")
        if body == "hello":
            self._welcome(stream, message.hello)
        elif not stream.coordinator_id:
            raise errors.InvalidRequest("the first message of a stream is Hello", field="hello")
        elif body == "commands":
            refusals = self._post(stream, message.commands.commands)
            if refusals:  # all in one message: what is refused must not cost more than what is done
                events = target_pb2.EventList(events=refusals)
                stream.outbox.put(target_pb2.TargetEvent(events=events))
        elif body == "end":
            stream.outbox.put(target_pb2.TargetEvent(end=common_pb2.End(reason=message.end.reason)))
            return False
        else:
            raise errors.InvalidRequest("a message without a body", field="body")
        return True

    def _welcome(self, stream: _Stream, hello: common_pb2.Hello) -> None:
        if hello.protocol.major != rpc.PROTOCOL_MAJOR:
            raise errors.ContractMismatch(
                f"protocol {hello.protocol.major}, this target speaks {rpc.PROTOCOL_MAJOR}", field="protocol"
            )
        if not hello.coordinator_id or stream.coordinator_id:
            raise errors.InvalidRequest("one Hello, naming the coordinator", field="coordinator_id")
        older = self._streams.get(hello.coordinator_id)
        if older is not None and older.generation >= hello.stream_generation:
            raise errors.StaleRound(
                f"stream generation {hello.stream_generation}, {older.generation} is open",
                field="stream_generation",
            )
        if older is not None:
            self._forget(older)
            older.ended.set()
        stream.coordinator_id, stream.generation = hello.coordinator_id, hello.stream_generation
        self._streams[hello.coordinator_id] = stream
        instance_id = self._built.description.instance_id
        welcome = common_pb2.Welcome(instance_id=instance_id, describe=self._describe)
        stream.outbox.put(target_pb2.TargetEvent(welcome=welcome))

    def _post(self, stream: _Stream, commands: Iterable[target_pb2.Command]) -> list[target_pb2.Event]:
        """Hands over what came in one message, together; returns the refusals of what is no command."""
        read, refusals = [], []
        for command in commands:
            try:
                if command.open.parts <= 1 or _join_parts(stream.opens, command):
                    read.append(wire_commands.command_from(command, stream.coordinator_id))
            except errors.InvalidRequest as error:
                refusals.append(wire.refusal_to(command, error))
        if read:
            self.engine_thread.post(*read)
        return refusals

    def _forget(self, stream: _Stream) -> None:
        """Frees the requests of a stream that ends, once."""
        if self._streams.get(stream.coordinator_id) is stream:
            del self._streams[stream.coordinator_id]
            self.engine_thread.post(DropCoordinator(stream.coordinator_id))

    async def _get_description(
        self, _request: common_pb2.DescribeRequest, _context: rpc.Context
    ) -> common_pb2.Describe:
        return self._describe

    async def _get_tokenizer(
        self, _request: target_pb2.GetTokenizerRequest, _context: rpc.Context
    ) -> AsyncIterator[target_pb2.TokenizerChunk]:
        for name, data in self._built.tokenizer_files.items():
            for start in range(0, max(len(data), 1), _CHUNK_BYTES):
                piece = data[start : start + _CHUNK_BYTES]
                last = start + _CHUNK_BYTES >= len(data)
                yield target_pb2.TokenizerChunk(name=name, data=piece, last=last)


def _join_parts(opens: OpenParts, command: target_pb2.Command) -> bool:
    """Makes the last part of a big Open whole; False while parts are missing."""
    message = command.open
    key = (command.request_id, command.epoch)
    token_ids = opens.join(key, message.part, message.parts, message.token_ids)
    if token_ids is None:
        return False
    del message.token_ids[:]
    message.token_ids.extend(token_ids)
    return True


@dataclass(frozen=True, eq=False)
class RunningTarget:
    """A served target."""

    server: rpc.RunningServer
    service: TargetService
    liveness: Liveness

    @property
    def address(self) -> str:
        return self.server.address

    async def stop(self, grace_seconds: float = 1.0) -> None:
        """Ends streams and the engine's thread after its running step."""
        await self.liveness.stop()
        await self.server.stop(grace_seconds)
        await asyncio.to_thread(self.service.engine_thread.stop)


async def serve(built: BuiltTarget, address: str, security: ServerSecurity | None = None) -> RunningTarget:
    """Serves an engine that has passed its self-test; ready at once."""
    service = TargetService(built)
    server = await rpc.start_server(service.service(), address, security)
    await server.set_ready(True)
    return RunningTarget(server, service, Liveness(server, service.engine_thread.stuck_seconds))


async def run_until_signalled(running: RunningTarget, stop: asyncio.Event) -> int:
    """Waits for a signal or for the engine to fail; returns the exit code."""
    waits = [asyncio.create_task(event.wait()) for event in (stop, running.service.failed)]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await wait
    await running.stop()
    return 1 if running.service.failed.is_set() else 0


async def start_target_service(config: TargetConfig) -> RunningTarget:
    """Builds and serves a target in this process (tests, benchmarks)."""
    security = SecurityFiles.of(config).server()
    built = await asyncio.to_thread(build, config)
    return await serve(built, config.address, security)
