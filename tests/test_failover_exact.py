"""A text that goes on at another target is the text it would have been: real engines, tiny models in float64.

Targets are lost in the middle of texts, at many places; each time the other one computes prompt and
committed tokens anew, in other batches than the lost one did.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from coordinator.config import CoordinatorConfig
from coordinator.coordinator import Coordinator
from coordinator.ports import StreamLost
from coordinator.services import Backends
from coordinator.target_members import TargetMembers
from coordinator.tokenizer import NoTokenizer
from coordinator.tuner.link_estimate import LinkEstimate
from deploy.in_process import COORDINATOR_ID, DrafterPort, EnginePort
from draft_service import wire as draft_wire
from draft_service.batcher import Batcher
from draft_service.replay import ReplayDrafter
from protos import common_pb2, coordinator_pb2, target_pb2
from target_service.build import BuiltTarget
from target_service.engine_thread import DropCoordinator
from tests.test_exactness import COUNT, PROMPTS, built, plain_texts, request, scripted

NUM_TEXTS = 4


class LosablePort(EnginePort):
    """A `TargetStream` onto an engine in this process."""

    def __init__(self, target: BuiltTarget, on_change: Callable[[bool], None]) -> None:
        super().__init__(target)
        self.estimate = LinkEstimate()
        self.num_lost = self.num_stale = 0
        self.refusal = self.last_error = ""
        self.rtt_seconds: float | None = None
        self._on_change = on_change
        self._is_up = True

    @property
    def is_connected(self) -> bool:
        return self._is_up

    def kv_stats(self) -> coordinator_pb2.KvStats | None:
        return None

    def require(self, accept: Callable[[common_pb2.Describe], None]) -> None:
        accept(self.describe)

    def start(self) -> None:
        self._on_change(True)

    async def stop(self) -> None:  # type: ignore[override]
        await asyncio.to_thread(super().stop)

    def lose(self) -> None:
        """As when the process dies: what it held is gone, what it was about to say is not heard."""
        self._is_up = False
        self.num_lost += 1
        self._thread.post(DropCoordinator(COORDINATOR_ID))
        for inbox in self._inboxes.values():
            inbox.put(StreamLost("lost"))
        self._on_change(False)

    def come(self) -> None:
        self._is_up = True
        self._on_change(True)

    def send(self, commands: Sequence[target_pb2.Command]) -> None:
        if self._is_up:
            super().send(commands)

    def _deliver(self, events: Sequence[target_pb2.Event]) -> None:
        if self._is_up:
            super()._deliver(events)


class Pair:
    """A coordinator and two engines of one model."""

    def __init__(self, targets: dict[str, BuiltTarget], drafter: DrafterPort | None) -> None:
        self.ports: dict[str, LosablePort] = {}

        def connect(address: str, on_change: Callable[[bool], None]) -> LosablePort:
            self.ports[address] = LosablePort(targets[address], on_change)
            return self.ports[address]

        self.members = TargetMembers(connect, 0.0)
        self.members.set_addresses(list(targets))
        config = CoordinatorConfig.load(None, target_address="in-process:0")
        self.coordinator = Coordinator(
            config, COORDINATOR_ID, Backends(self.members, drafter, NoTokenizer()), 1
        )

    def lose_the_busiest(self) -> None:
        """The other one is there again by then."""
        lost = self.members.busiest()
        for replica in self.members:
            if replica is not lost:
                self.ports[replica.address].come()
        self.ports[lost.address].lose()

    async def text(self, message: coordinator_pb2.GenerateRequest, lose_at: Sequence[int]) -> list[int]:
        """Ids of a request; each time its text has so many of them, the target with the most texts goes."""
        generation = await self.coordinator.admit(message)
        ids: list[int] = []
        left = list(lose_at)
        async for response in generation.attach().messages():
            if response.HasField("delta"):
                assert response.delta.first_token_index == len(ids)
                ids += response.delta.token_ids
                if left and len(ids) >= left[0]:
                    left.pop(0)
                    self.lose_the_busiest()
            elif response.HasField("finished"):
                self.num_reopens += response.finished.ledger.num_reopens
        return ids

    num_reopens = 0


@asynccontextmanager
async def pair(targets: dict[str, BuiltTarget], drafter: ReplayDrafter | None) -> AsyncIterator[Pair]:
    batcher = Batcher(drafter) if drafter is not None else None
    port = None
    if batcher is not None and drafter is not None:
        await batcher.start()
        port = DrafterPort(batcher, draft_wire.write_description(drafter.description, 1))
    found = Pair(targets, port)
    try:
        yield found
        await found.coordinator.drain(5.0)
    finally:
        await found.members.stop()
        if batcher is not None:
            await batcher.stop()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("v", [0, 4])
async def test_the_text_is_the_same_wherever_its_targets_are_lost(temperature: float, v: int) -> None:
    """v = 0 is plain decoding; else rounds in which some proposals are wrong."""
    targets = {name: built("llama", False) for name in "ab"}
    references = await plain_texts(targets["a"], temperature)
    num_reopens = 0
    for place in (1, 3, 9, 20):
        names = [f"{place}-{index}" for index in range(NUM_TEXTS)]
        texts = {name: [*PROMPTS[index], *references[index]] for index, name in enumerate(names)}
        async with pair(targets, scripted(texts, 2) if v else None) as system:
            found = await asyncio.gather(
                *(
                    system.text(
                        request(name, PROMPTS[index], temperature, v), [place, 22] if index == 0 else []
                    )
                    for index, name in enumerate(names)
                )
            )
            num_reopens += system.num_reopens
        assert found == references[:NUM_TEXTS], f"lost after {place} tokens"
    assert num_reopens >= 4, "the faults landed in the middle of texts"
    for target in targets.values():
        assert target.engine.pool.num_available == target.engine.pool.num_pages
    assert all(len(text) == COUNT for text in found)


async def test_later_turns_find_the_pages_of_earlier_ones_at_their_target() -> None:
    """Four conversations at two targets: only what is new is computed, as with one target."""
    targets = {name: built("llama", False) for name in "ab"}
    prompts = {name: [(7 * i + 11 * shift) % 61 for i in range(70)] for shift, name in enumerate("stuv")}
    async with pair(targets, None) as system:

        async def turn(name: str, number: int) -> None:
            message = request(f"{name}{number}", prompts[name], 0.0, 0)
            message.session_id = name
            generation = await system.coordinator.admit(message)
            async for response in generation.attach().messages():
                prompts[name] += response.delta.token_ids
                if response.HasField("finished"):
                    cached[number].append(response.finished.usage.cached_tokens / len(message.token_ids))

        cached: dict[int, list[float]] = {0: [], 1: [], 2: []}
        for number in cached:
            names = [*prompts]  # in another order each time: load alone would send them elsewhere
            await asyncio.gather(*(turn(name, number) for name in names[number:] + names[:number]))
        served = [replica.num_served for replica in system.members]
    assert served == [6, 6]
    assert cached[0] == [0.0] * 4
    assert min(cached[1] + cached[2]) > 0.8
