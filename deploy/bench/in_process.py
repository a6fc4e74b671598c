"""Engine, drafter and rounds in this process, without gRPC: what disaggregation is measured against."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence

from coordinator.client import Answer
from coordinator.commands import close_command
from coordinator.config import CoordinatorConfig
from coordinator.coordinator import Backends, Coordinator
from coordinator.ports import Inbox
from coordinator.tokenizer import load_tokenizer
from deploy.local import StackOptions
from draft_service import wire as draft_wire
from draft_service.batcher import Answer as DraftAnswer
from draft_service.batcher import Batcher
from draft_service.loader import load_drafter
from protos import common_pb2, coordinator_pb2, draft_pb2, target_pb2
from protos.errors import DliteError, InvalidRequest, Unavailable
from target_service import wire as target_wire
from target_service.build import BuiltTarget, build
from target_service.commands import Event
from target_service.config import TargetConfig
from target_service.engine_thread import EngineThread

_COORDINATOR_ID = "in-process"


class LocalTarget:
    """A `TargetPort` on an engine of this process; the engine keeps a thread of its own."""

    is_connected = True

    def __init__(self, built: BuiltTarget, now: Callable[[], float] = time.monotonic) -> None:
        self.describe = target_wire.describe_to(built.description)
        self.last_heard_seconds = 0.0
        self.failure: BaseException | None = None
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._inboxes: dict[str, Inbox] = {}
        self._engine = EngineThread(built.engine, self._emit, built.description.threads, self._fail)
        self._engine.start()

    def stop(self) -> None:
        self._engine.stop()

    async def wait_connected(self, timeout_seconds: float) -> bool:
        return True

    def attach(self, request_id: str, inbox: Inbox) -> None:
        self._inboxes[request_id] = inbox

    def send(self, commands: Sequence[target_pb2.Command]) -> None:
        for command in commands:
            self._engine.post(target_wire.command_from(command, _COORDINATOR_ID))

    def close(self, request_id: str, epoch: int, keep_length: int) -> None:
        self._inboxes.pop(request_id, None)
        if epoch:
            self.send([close_command(request_id, epoch, keep_length)])

    def suspect(self) -> None:
        raise Unavailable(f"the engine of this process owes an answer: {self.failure}")

    def _emit(self, _coordinator_id: str, events: list[Event]) -> None:
        self._loop.call_soon_threadsafe(self._route, [target_wire.event_to(event) for event in events])

    def _fail(self, error: BaseException) -> None:
        self.failure = error

    def _route(self, events: list[target_pb2.Event]) -> None:
        self.last_heard_seconds = self._now()
        for event in events:
            kind = event.WhichOneof("kind")
            if kind in (None, "progress"):
                continue
            inbox = self._inboxes.get(getattr(event, kind).request_id)
            if inbox is not None:
                inbox.put(event)


class LocalDrafter:
    """A `DraftPort` on a drafter of this process; the batcher keeps a thread of its own."""

    is_available = True
    refusal = ""

    def __init__(self, batcher: Batcher, describe: common_pb2.Describe) -> None:
        self.describe = describe
        self._batcher = batcher
        self._pending: dict[tuple[str, int, int], asyncio.Future[draft_pb2.Proposal]] = {}

    def propose(self, item: draft_pb2.ProposeItem) -> asyncio.Future[draft_pb2.Proposal]:
        future: asyncio.Future[draft_pb2.Proposal] = asyncio.get_running_loop().create_future()
        self._pending[item.request_id, item.epoch, item.round] = future
        try:
            self._batcher.submit(draft_wire.read_ticket(item, self, self._batcher.now_seconds()))
        except InvalidRequest as error:
            future.set_exception(error)
        return future

    def deliver(self, answers: Sequence[DraftAnswer]) -> None:
        message = draft_wire.write_answers(answers)
        for proposal in message.proposals.proposals if message is not None else ():
            future = self._pending.pop((proposal.request_id, proposal.epoch, proposal.round), None)
            if future is not None and not future.done():
                future.set_result(proposal)

    def note_failure(self) -> None:
        """Nothing to avoid: there is no other drafter."""


class InProcess:
    """A coordinator without a port."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    async def complete(self, request: coordinator_pb2.GenerateRequest) -> Answer:
        """As `Client.complete`.

        Raises:
            DliteError: the request failed.
        """
        generation = await self._coordinator.admit(request)
        answer = Answer()
        async for message in generation.outlet.messages():
            answer.add(message)
        if answer.finished.error or not answer.is_finished:
            raise DliteError(answer.finished.error or "the answer has no end")
        return answer


@contextlib.asynccontextmanager
async def in_process_stack(options: StackOptions, layers: Sequence[int]) -> AsyncIterator[InProcess]:
    """The same target, drafter and defaults as `local_stack(options)`.

    Args:
        layers: tapped layers, as the drafter wants them.
    """
    assert options.drafter is not None
    config = TargetConfig.load(
        None, target=str(options.target), tapped_layers=tuple(layers), threads=options.target_threads
    )
    built = await asyncio.to_thread(build, config)
    drafter = await asyncio.to_thread(load_drafter, options.drafter, options.target)
    batcher = Batcher(drafter)
    await batcher.start()
    describe = draft_wire.write_description(drafter.description, options.draft_threads)
    target = LocalTarget(built)
    try:
        tokenizer = load_tokenizer(built.tokenizer_files, built.description.tokenizer_hash)
        settings = CoordinatorConfig.load(None, target_address=_COORDINATOR_ID)
        backends = Backends(target, LocalDrafter(batcher, describe), tokenizer)
        yield InProcess(Coordinator(settings, _COORDINATOR_ID, backends, time.time_ns() // 1_000_000))
    finally:
        await asyncio.to_thread(target.stop)
        await batcher.stop()
