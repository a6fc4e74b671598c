"""Several table targets in this process behind one coordinator: they come, go and hang as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from coordinator.answer import Answer
from coordinator.coordinator import Coordinator
from coordinator.generation import Generation
from coordinator.services import Backends
from coordinator.target_members import TargetMembers
from coordinator.tuner.link_estimate import LinkEstimate
from protos import common_pb2, coordinator_pb2, draft_pb2, target_pb2
from protos.errors import ContractMismatch, DliteError
from tests.coordinator_fakes import TableEngine, counting
from tests.coordinator_harness import (
    ScriptedDrafter,
    TablePort,
    describe_target,
    make_config,
    request,
    shared_tokenizer,
)

Command = target_pb2.Command


class ReplicaPort(TablePort):
    """A `TargetStream` on a table target of its own.

    While `is_held`, it opens texts but decides no further token: they stay where they are.
    """

    def __init__(self, on_change: Callable[[bool], None], **describe: Any) -> None:
        super().__init__(TableEngine(counting), on_command=self._on_command)
        self.describe = describe_target(**describe)
        self.is_connected = False
        self.is_held = False
        self.is_loading = False
        # Whether commands do not arrive.
        self.is_deaf = False
        self.estimate = LinkEstimate()
        self.num_lost = self.num_stale = 0
        self.refusal = self.last_error = ""
        self.rtt_seconds: float | None = None
        self._on_change = on_change
        self._held: list[Command] = []
        self._accept: Callable[[common_pb2.Describe], None] = lambda _: None

    def kv_stats(self) -> coordinator_pb2.KvStats | None:
        return coordinator_pb2.KvStats(pages_held=len(self.engine.sequences), num_pages=10)

    def require(self, accept: Callable[[common_pb2.Describe], None]) -> None:
        self._accept = accept

    def start(self) -> None:
        if not self.is_loading:
            self.come()

    async def stop(self) -> None:
        self.is_connected = False

    def come(self) -> None:
        """It answers, for the first time or again."""
        try:
            self._accept(self.describe)
        except ContractMismatch as error:
            self.refusal = str(error)
            return
        self.is_connected = True
        self._on_change(True)

    def lose(self) -> None:
        """The stream ends, and the target with it."""
        self.is_connected = False
        self.num_lost += 1
        self.last_error = "cut by the test"
        super().lose()
        self._on_change(False)

    def release(self) -> None:
        """Goes on with what it held."""
        self.is_held = False
        held, self._held = self._held, []
        self.send(held)

    def send(self, commands: Sequence[Command]) -> None:
        if self.is_connected and not self.is_deaf:
            super().send(commands)

    def _on_command(self, command: Command) -> list[Command]:
        if self.is_held and command.WhichOneof("kind") not in ("open", "close"):
            self._held.append(command)
            return []
        return [command]

    @property
    def num_texts(self) -> int:
        """That it holds."""
        return len(self.engine.sequences)


class World:
    """A coordinator and its targets, "a", "b", ..

    Args:
        num_right: proposals of a drafter that are right; None: without a drafter.
        describe: of each target that is not as usual, by name.
    """

    def __init__(
        self,
        names: str,
        num_right: int | None = None,
        describe: dict[str, dict[str, Any]] | None = None,
        **config: Any,
    ) -> None:
        self._describe = describe or {}
        # Whether new targets do not answer before a test says so.
        self.loading = False
        self.ports: dict[str, ReplicaPort] = {}
        self.members = TargetMembers(self._connect, config.get("drain_seconds", 0.0))
        self.members.set_addresses(list(names))
        drafter = None
        if num_right is not None:
            drafter = _Drafter(_Everywhere(self.ports), num_right)
        settings = {"target_loss_seconds": 5.0, "max_waiting": 100, **config}
        backends = Backends(self.members, drafter, shared_tokenizer())
        self.coordinator = Coordinator(
            make_config(**settings), "test", backends, 1000, lambda count: b"\7" * count
        )

    def __getitem__(self, name: str) -> ReplicaPort:
        return self.ports[name]

    def _connect(self, address: str, on_change: Callable[[bool], None]) -> ReplicaPort:
        port = self.ports[address] = ReplicaPort(on_change, **self._describe.get(address, {}))
        port.is_loading = self.loading
        return port

    def hold(self) -> None:
        for port in self.ports.values():
            port.is_held = True

    def release(self) -> None:
        for port in self.ports.values():
            port.release()

    @property
    def num_texts(self) -> dict[str, int]:
        """That each target holds."""
        return {name: port.num_texts for name, port in self.ports.items()}

    def where(self, request_id: str) -> list[str]:
        """The targets that hold a text."""
        return [name for name, port in self.ports.items() if request_id in port.engine.sequences]

    async def start(self, **fields: Any) -> Running:
        """A text that has its first token."""
        generation = await self.coordinator.admit(request(**fields))
        running = Running(generation)
        await settles(lambda: running.answer.token_ids or running.task.done())
        return running


class _Everywhere(TableEngine):
    """The sequences of all targets, for the drafter's own checks."""

    def __init__(self, ports: dict[str, ReplicaPort]) -> None:
        super().__init__(counting)
        self._ports = ports

    @property
    def sequences(self) -> dict[str, Any]:  # type: ignore[override]
        return {key: value for port in self._ports.values() for key, value in port.engine.sequences.items()}

    @sequences.setter
    def sequences(self, _: dict[str, Any]) -> None:
        """They are the targets' own."""


class _Drafter(ScriptedDrafter):
    """Answers anything where a text has just lost its target."""

    def proposal(self, item: draft_pb2.ProposeItem) -> draft_pb2.Proposal:
        if item.request_id in self._engine.sequences:
            return super().proposal(item)
        return draft_pb2.Proposal(
            request_id=item.request_id, epoch=item.epoch, round=item.round, tokens=[0] * item.k
        )


class Running:
    """A text under way, and its reader."""

    def __init__(self, generation: Generation) -> None:
        self.answer = Answer()
        self.failure: DliteError | None = None
        self.task = asyncio.create_task(self._read(generation))

    async def _read(self, generation: Generation) -> None:
        try:
            async for response in generation.attach().messages():
                self.answer.add(response)  # raises at a gap or a repeat
        except DliteError as error:
            self.failure = error

    async def end(self) -> Answer:
        """The whole text. Raises AssertionError when it failed."""
        await settles(self.task.done)
        self.task.result()
        assert self.failure is None, self.failure
        return self.answer


async def settles(holds: Callable[[], Any]) -> None:
    """Waits until something holds, which takes a few turns of the loop: AssertionError after seconds."""
    try:
        async with asyncio.timeout(10):
            while not holds():  # noqa: ASYNC110 - what is watched has no event
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError("does not come to hold") from None
