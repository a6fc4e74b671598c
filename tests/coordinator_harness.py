"""Plugs the table target and a scripted drafter into the coordinator: in this process, or over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from coordinator.answer import Answer
from coordinator.commands import close_command
from coordinator.config import CoordinatorConfig
from coordinator.coordinator import Coordinator
from coordinator.draft_link import DraftLink
from coordinator.ports import Inbox, StreamLost
from coordinator.question import Question
from coordinator.services import Backends
from coordinator.target_members import members_of
from coordinator.tokenizer import Tokenizer, load_tokenizer, tokenizer_hash
from protos import common_pb2, coordinator_pb2, draft_pb2, rpc, target_pb2
from protos.errors import DliteError, Unavailable
from protos.stream import Outbox, Stamps, read_all, write_all
from tests.coordinator_fakes import EOS, D, TableEngine, V, tokenizer_files

FILES = tokenizer_files()
Fault = Callable[[Any], list[Any]]


def keep(item: Any) -> list[Any]:
    """No fault."""
    return [item]


def describe_target(**changes: Any) -> common_pb2.Describe:
    values: dict[str, Any] = {
        "protocol": common_pb2.Protocol(major=1),
        "noise_version": 1,
        "model": "models/table",
        "fingerprint": "f" * 64,
        "embedding_hash": "e" * 64,
        "tokenizer_hash": tokenizer_hash(FILES),
        "vocab_size": V,
        "hidden_size": D,
        "num_layers": 3,
        "tapped_layers": [0, 2],
        "max_context": 512,
        "eos_token_ids": [EOS],
        "max_verify_block_size": 16,
    }
    return common_pb2.Describe(**{**values, **changes})


def describe_drafter(**changes: Any) -> common_pb2.Describe:
    describe = describe_target(drafter_kind="dlite_v1", block_size=9, anchor_group_size=1)
    describe.MergeFrom(common_pb2.Describe(**changes))
    return describe


class TablePort:
    """A `TargetPort` on a `TableEngine` in this process. `on_command` and `on_event` inject faults."""

    def __init__(self, engine: TableEngine, on_command: Fault = keep, on_event: Fault = keep) -> None:
        self.engine = engine
        self.describe = describe_target()
        self.is_connected = True
        self.last_heard_seconds = 0.0
        self.inboxes: dict[str, Inbox] = {}
        self.num_suspected = 0
        self._on_command = on_command
        self._on_event = on_event
        self._ticking = False

    async def wait_connected(self, timeout_seconds: float) -> bool:
        return self.is_connected

    def attach(self, request_id: str, inbox: Inbox) -> None:
        self.inboxes[request_id] = inbox

    def send(self, commands: Sequence[target_pb2.Command]) -> None:
        for command in commands:
            for kept in self._on_command(command):
                self._deliver(self.engine.handle(kept))
        self._tick_soon()

    def close(self, request_id: str, epoch: int, keep_length: int) -> None:
        self.inboxes.pop(request_id, None)
        if epoch:
            self.send([close_command(request_id, epoch, keep_length)])

    def suspect(self) -> None:
        self.num_suspected += 1

    def lose(self) -> None:
        """The stream ends; the next one finds an empty target."""
        self.engine.drop_all()
        for inbox in self.inboxes.values():
            inbox.put(StreamLost("cut by the test"))

    def _deliver(self, events: list[target_pb2.Event]) -> None:
        for event in events:
            for kept in self._on_event(event):
                asyncio.get_running_loop().call_soon(self._put, kept)

    def _put(self, event: target_pb2.Event) -> None:
        body = getattr(event, str(event.WhichOneof("kind")))
        if body.request_id in self.inboxes:
            self.inboxes[body.request_id].put(event)

    def _tick_soon(self) -> None:
        if not self._ticking and self.engine.is_running:
            self._ticking = True
            asyncio.get_running_loop().call_soon(self._tick)

    def _tick(self) -> None:
        self._ticking = False
        self._deliver(self.engine.step())
        self._tick_soon()


class ScriptedDrafter:
    """A `DraftPort` whose first `num_right` proposals are the target's own choice, the rest wrong."""

    def __init__(self, engine: TableEngine, num_right: int) -> None:
        self.describe: common_pb2.Describe | None = describe_drafter()
        self.refusal = ""
        self.is_available = True
        self.items: list[draft_pb2.ProposeItem] = []
        self.num_failures = 0
        self._engine = engine
        self._num_right = num_right

    def propose(self, item: draft_pb2.ProposeItem, cohort: int = 0) -> Awaitable[draft_pb2.Proposal]:
        self.items.append(item)
        return self.answer(item)

    async def answer(self, item: draft_pb2.ProposeItem) -> draft_pb2.Proposal:
        return self.proposal(item)

    def proposal(self, item: draft_pb2.ProposeItem) -> draft_pb2.Proposal:
        sequence = self._engine.sequences[item.request_id]
        assert item.position == len(sequence.tokens) - 1
        assert item.recent_tokens[-1] == sequence.tokens[-1]
        assert item.features.data[0] == len(sequence.tokens) % 251, "stale features"
        generated = sequence.tokens[sequence.num_prompt :]
        tokens: list[int] = []
        for index in range(item.k):
            right = self._engine.decide(generated + tokens)
            tokens.append(right if index < self._num_right else (right + 1) % V)
        return draft_pb2.Proposal(
            request_id=item.request_id, epoch=item.epoch, round=item.round, tokens=tokens
        )

    def note_failure(self, asked: Awaitable[draft_pb2.Proposal]) -> None:
        self.num_failures += 1


class DeadDrafter(ScriptedDrafter):
    """Connected, but every question fails."""

    def propose(self, item: draft_pb2.ProposeItem, cohort: int = 0) -> Awaitable[draft_pb2.Proposal]:
        raise Unavailable("dead")


def make_config(**changes: Any) -> CoordinatorConfig:
    values: dict[str, Any] = {
        "target_address": "unused:1",
        "resend_seconds": 0.05,
        "draft_timeout_seconds": 5.0,
        "drain_seconds": 1.0,
    }
    return CoordinatorConfig(**{**values, **changes})


_TOKENIZER: list[Tokenizer] = []


def shared_tokenizer() -> Tokenizer:
    if not _TOKENIZER:
        _TOKENIZER.append(load_tokenizer(FILES, tokenizer_hash(FILES)))
    return _TOKENIZER[0]


def make_coordinator(port: TablePort, drafter: ScriptedDrafter | None = None, **config: Any) -> Coordinator:
    backends = Backends(members_of(port), drafter, shared_tokenizer())
    return Coordinator(make_config(**config), "test", backends, 1000, lambda count: b"\7" * count)


def request(**fields: Any) -> coordinator_pb2.GenerateRequest:
    """A greedy request; `source`, `mode`, `k`, `v` go to its speculation field."""
    message = coordinator_pb2.GenerateRequest(temperature=0.0)
    for short, name in (("source", "source"), ("mode", "mode")):
        if short in fields:
            setattr(message.speculation, name, fields.pop(short))
    for short, name in (("k", "num_draft_tokens"), ("v", "verify_block_size")):
        if short in fields:
            setattr(message.speculation, name, fields.pop(short))
    if not {"prompt", "token_ids", "messages"} & set(fields):
        message.token_ids.extend([1, 2, 3])
    message.MergeFrom(coordinator_pb2.GenerateRequest(**fields))
    return message


async def complete(
    coordinator: Coordinator, message: coordinator_pb2.GenerateRequest
) -> tuple[Answer, list[coordinator_pb2.GenerateResponse], DliteError | None]:
    """Runs a request to its end: the answer, its messages and the error of its status."""
    answer, messages, failure = Answer(), [], None
    generation = await coordinator.admit(message)
    try:
        async for response in generation.attach().messages():
            answer.add(response)
            messages.append(response)
    except DliteError as error:
        failure = error
    return answer, messages, failure


async def until(holds: Callable[[], bool]) -> None:
    """Waits until something holds; the test's own time limit ends it otherwise."""
    while not holds():  # noqa: ASYNC110 - what is watched has no event
        await asyncio.sleep(0.005)


class TargetServer:
    """The table target behind real gRPC. One stream at a time; a new one replaces the old."""

    def __init__(self, engine: TableEngine, describe: common_pb2.Describe) -> None:
        self.engine = engine
        self.describe = describe
        self.files: dict[str, bytes] = dict(FILES)
        self.num_streams = 0
        self.ended: list[str] = []
        self.on_event: Fault = keep
        self._outbox = Outbox()
        self._context: Any = None

    def service(self) -> rpc.Service:
        methods = {
            "Decode": rpc.duplex(self._decode),
            "GetTokenizer": rpc.server_stream(target_pb2.GetTokenizerRequest, self._tokenizer),
        }
        return rpc.Service("dlite.v1.Target", methods)

    async def cut(self) -> None:
        """Ends the running stream without an end frame."""
        self._outbox.close()

    async def _tokenizer(
        self, message: target_pb2.GetTokenizerRequest, context: rpc.Context
    ) -> AsyncIterator[target_pb2.TokenizerChunk]:
        for name, content in self.files.items():
            half = len(content) // 2
            yield target_pb2.TokenizerChunk(name=name, data=content[:half])
            yield target_pb2.TokenizerChunk(name=name, data=content[half:], last=True)

    async def _decode(self, context: rpc.Context) -> None:
        self.num_streams += 1
        self.engine.drop_all()
        outbox = self._outbox = Outbox()
        stamps = Stamps()
        wake = asyncio.Event()

        def on_message(data: bytes) -> bool:
            message = target_pb2.TargetCommand.FromString(data)
            stamps.note(message.stamp)
            body = message.WhichOneof("body")
            if body == "hello":
                welcome = common_pb2.Welcome(instance_id="table", describe=self.describe)
                outbox.put(target_pb2.TargetEvent(welcome=welcome))
            elif body == "commands":
                for command in message.commands.commands:
                    self._emit(outbox, self.engine.handle(command))
                wake.set()
            elif body == "end":
                self.ended.append(message.end.reason)
            return body != "end"

        tasks = [
            asyncio.create_task(read_all(context.read, on_message)),
            asyncio.create_task(write_all(outbox, context.write, stamps)),
            asyncio.create_task(self._run(outbox, wake)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    async def _run(self, outbox: Outbox, wake: asyncio.Event) -> None:
        while True:
            await wake.wait()
            wake.clear()
            while self.engine.is_running:
                self._emit(outbox, self.engine.step())
                await asyncio.sleep(0)

    def _emit(self, outbox: Outbox, events: list[target_pb2.Event]) -> None:
        kept = [item for event in events for item in self.on_event(event)]
        if kept:
            outbox.put(target_pb2.TargetEvent(events=target_pb2.EventList(events=kept)))


@asynccontextmanager
async def serve_target(
    engine: TableEngine, address: str = "127.0.0.1:0", **describe: Any
) -> AsyncIterator[tuple[str, TargetServer]]:
    target = TargetServer(engine, describe_target(**describe))
    running = await rpc.start_server(target.service(), address)
    await running.set_ready(True)
    try:
        yield running.address, target
    finally:
        await running.stop(0)


def asked(link: DraftLink, item: draft_pb2.ProposeItem) -> Question:
    """Asks one replica, without a pool."""
    question = Question(item)
    link.ask(question)
    return question


class DraftServer:
    """A drafter behind real gRPC that answers by a function of the item."""

    def __init__(self, propose: Callable[[draft_pb2.ProposeItem], draft_pb2.Proposal | None]) -> None:
        self.describe = describe_drafter()
        self.num_batches = 0
        self.outbox = Outbox()
        self._propose = propose

    def service(self) -> rpc.Service:
        return rpc.Service("dlite.v1.Draft", {"Propose": rpc.duplex(self._handle)})

    def send(self, proposals: Sequence[draft_pb2.Proposal]) -> None:
        self.outbox.put(draft_pb2.ProposalBatch(proposals=draft_pb2.ProposalList(proposals=proposals)))

    async def _handle(self, context: rpc.Context) -> None:
        outbox = self.outbox = Outbox()
        stamps = Stamps()

        def on_message(data: bytes) -> bool:
            message = draft_pb2.ProposeBatch.FromString(data)
            stamps.note(message.stamp)
            body = message.WhichOneof("body")
            if body == "hello":
                welcome = common_pb2.Welcome(instance_id="scripted", describe=self.describe)
                outbox.put(draft_pb2.ProposalBatch(welcome=welcome))
            elif body == "items":
                self.num_batches += 1
                answers = [self._propose(item) for item in message.items.items]
                self.send([answer for answer in answers if answer is not None])
            return body != "end"

        tasks = [
            asyncio.create_task(read_all(context.read, on_message)),
            asyncio.create_task(write_all(outbox, context.write, stamps)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()


@asynccontextmanager
async def serve_drafter(drafter: DraftServer, address: str = "127.0.0.1:0") -> AsyncIterator[str]:
    running = await rpc.start_server(drafter.service(), address)
    try:
        yield running.address
    finally:
        await running.stop(0)
