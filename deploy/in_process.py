"""Target and drafter in the coordinator's own process: the same rounds without gRPC between them.

Proofs use it to cross many cases quickly; the `disaggregation` yardstick uses it as the arm that
pays for no wire. Messages are the wire's, but they are handed over as objects, never encoded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from coordinator.config import CoordinatorConfig
from coordinator.coordinator import Coordinator
from coordinator.ports import Inbox, StreamLost
from coordinator.services import Backends
from coordinator.target_members import members_of
from coordinator.tokenizer import NoTokenizer, Tokenizer
from draft_service import wire as draft_wire
from draft_service.batcher import Answer, Batcher
from draft_service.proposal import ProposesTokens
from protos import common_pb2, draft_pb2, target_pb2
from target_service import wire as target_wire
from target_service.build import BuiltTarget
from target_service.commands import Event
from target_service.engine_thread import DropCoordinator, EngineThread
from target_service.wire_commands import command_from

COORDINATOR_ID = "in-process"


class EnginePort:
    """A `TargetPort` onto an engine's thread in this process.

    Args:
        built: the engine; its thread starts here and ends with `stop`.
    """

    def __init__(self, built: BuiltTarget) -> None:
        self._loop = asyncio.get_running_loop()
        self._describe = target_wire.describe_to(built.description)
        self._inboxes: dict[str, Inbox] = {}
        self._last_heard_seconds = time.monotonic()
        self.failure: BaseException | None = None
        threads = built.description.threads
        self._thread = EngineThread(built.engine, self._emit, threads, self._on_failure)
        self._thread.start()

    @property
    def describe(self) -> common_pb2.Describe:
        return self._describe

    @property
    def is_connected(self) -> bool:
        return self.failure is None

    @property
    def last_heard_seconds(self) -> float:
        return self._last_heard_seconds

    async def wait_connected(self, timeout_seconds: float) -> bool:
        return self.is_connected

    def attach(self, request_id: str, inbox: Inbox) -> None:
        self._inboxes[request_id] = inbox

    def send(self, commands: Sequence[target_pb2.Command]) -> None:
        self._thread.post(*(command_from(command, COORDINATOR_ID) for command in commands))

    def close(self, request_id: str, epoch: int, keep_length: int) -> None:
        self._inboxes.pop(request_id, None)
        if epoch:
            close = target_pb2.Close(keep_length=keep_length)
            self.send([target_pb2.Command(request_id=request_id, epoch=epoch, close=close)])

    def suspect(self) -> None:
        """Nothing to cut: there is no stream."""

    def stop(self) -> None:
        self._thread.post(DropCoordinator(COORDINATOR_ID))
        self._thread.stop()

    def _emit(self, _coordinator_id: str, events: list[Event]) -> None:
        messages = [target_wire.event_to(event) for event in events]
        self._loop.call_soon_threadsafe(self._deliver, messages)

    def _deliver(self, events: Sequence[target_pb2.Event]) -> None:
        self._last_heard_seconds = time.monotonic()
        for event in events:
            kind = event.WhichOneof("kind")
            inbox = None if kind in (None, "progress") else self._inboxes.get(getattr(event, kind).request_id)
            if inbox is not None:
                inbox.put(event)

    def _on_failure(self, error: BaseException) -> None:
        self.failure = error
        self._loop.call_soon_threadsafe(self._tell_failure, f"the engine has failed: {error}")

    def _tell_failure(self, reason: str) -> None:
        for inbox in self._inboxes.values():
            inbox.put(StreamLost(reason))


class DrafterPort:
    """A `DraftPort` onto a batcher in this process.

    Args:
        batcher: started.
        describe: of its drafter.
    """

    def __init__(self, batcher: Batcher, describe: common_pb2.Describe) -> None:
        self._batcher = batcher
        self._describe = describe
        self._waiting: dict[tuple[str, int, int], asyncio.Future[draft_pb2.Proposal]] = {}

    @property
    def describe(self) -> common_pb2.Describe:
        return self._describe

    @property
    def refusal(self) -> str:
        return ""

    @property
    def is_available(self) -> bool:
        return True

    def propose(self, item: draft_pb2.ProposeItem, cohort: int = 0) -> asyncio.Future[draft_pb2.Proposal]:
        future = asyncio.get_running_loop().create_future()
        self._waiting[item.request_id, item.epoch, item.round] = future
        self._batcher.submit(draft_wire.read_ticket(item, self, self._batcher.now_seconds()))
        return future

    def note_failure(self, asked: Awaitable[draft_pb2.Proposal]) -> None:
        """There is no link that could fail."""

    def deliver(self, answers: Sequence[Answer]) -> None:
        message = draft_wire.write_answers(answers)
        for proposal in message.proposals.proposals if message is not None else ():
            key = (proposal.request_id, proposal.epoch, proposal.round)
            future = self._waiting.pop(key, None)
            if future is not None and not future.done():
                future.set_result(proposal)


@dataclass(frozen=True, eq=False)
class InProcess:
    """A coordinator whose services live in this process."""

    coordinator: Coordinator
    target: EnginePort


@asynccontextmanager
async def in_process(
    built: BuiltTarget,
    drafter: ProposesTokens | None,
    tokenizer: Tokenizer | None = None,
    epoch_start: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> AsyncIterator[InProcess]:
    """Runs the whole system on this event loop, the engine's thread and the drafter's thread."""
    port = EnginePort(built)
    draft_port: DrafterPort | None = None
    batcher: Batcher | None = None
    try:
        if drafter is not None:
            batcher = Batcher(drafter)
            await batcher.start()
            describe = draft_wire.write_description(drafter.description, built.description.threads)
            draft_port = DrafterPort(batcher, describe)
        config = CoordinatorConfig.load(None, target_address="in-process:0")
        backends = Backends(members_of(port), draft_port, tokenizer or NoTokenizer())
        coordinator = Coordinator(config, COORDINATOR_ID, backends, epoch_start())
        yield InProcess(coordinator, port)
        await coordinator.drain(0.0)
    finally:
        if batcher is not None:
            await batcher.stop()
        await asyncio.to_thread(port.stop)
