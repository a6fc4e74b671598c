"""A local Ray cluster with a tiny model, and load whose every text is known."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from coordinator.answer import Answer
from coordinator.client import AsyncClient, ClientOptions
from deploy.cluster.spec import ClusterSpec
from protos import coordinator_pb2
from tests.fakes import GOLDEN

if TYPE_CHECKING:
    from deploy.cluster.ray_cluster import Cluster

SECONDS = 180.0
NAME = "proof"
NUM_CLIENTS = 3


def spec(drafter: str = "draft_trained_g1", drafters: int = 2) -> ClusterSpec:
    """Two targets in float64, where texts have no near-ties; two coordinators."""
    return ClusterSpec.model_validate(
        {
            "name": NAME,
            "target": {
                "model": str(GOLDEN / "target_qwen3"),
                "replicas": 2,
                "flags": ["--tapped-layers", "0,1,4,5", "--dtype", "float64"],
            },
            "draft": {"model": str(GOLDEN / drafter), "replicas": drafters, "cpus": 0.5},
            "coordinator": {"replicas": 2, "cpus": 0.5},
        }
    )


def request(seed: int) -> coordinator_pb2.GenerateRequest:
    """Always with drafts: left to itself the tuner finds out that this target is too quick for them."""
    drafted = coordinator_pb2.Speculation(
        source=coordinator_pb2.PROPOSAL_SOURCE_DRAFTER, num_draft_tokens=4, verify_block_size=4
    )
    return coordinator_pb2.GenerateRequest(
        token_ids=[61, 70, 22, 78, 200 + seed],
        max_tokens=120,
        temperature=1.0,
        seed=seed,
        ignore_eos=True,
        speculation=drafted,
    )


@dataclass(eq=False)
class Load:
    """Clients that read one text after the other, and compare each with what it was without faults."""

    expected: list[list[int]] = field(default_factory=list)
    num_texts: int = 0
    num_resumed: int = 0
    wrong: list[str] = field(default_factory=list)
    in_middle: dict[int, int] = field(default_factory=dict)

    async def read(self, client: AsyncClient, seed: int, who: int) -> list[int]:
        answer = Answer()
        async for message in client.generate(request(seed)):
            answer.add(message)  # raises at a gap or a repeat
            self.in_middle[who] = len(answer.token_ids)
        self.in_middle[who] = 0
        return answer.token_ids

    async def _client(self, addresses: tuple[str, ...], who: int) -> None:
        order = addresses[who % len(addresses) :] + addresses[: who % len(addresses)]
        async with AsyncClient(*order, options=ClientOptions(SECONDS)) as client:
            seed = who
            while True:
                seed = (seed + 1) % len(self.expected)
                try:
                    ids = await self.read(client, seed, who)
                except Exception as error:
                    self.wrong.append(f"seed {seed}: {error!r}")
                    continue
                self.num_texts += 1
                if ids != self.expected[seed]:
                    self.wrong.append(f"seed {seed}: {ids}")

    @contextlib.asynccontextmanager
    async def running(self, addresses: tuple[str, ...]) -> AsyncIterator[None]:
        """Reads what the texts are, then keeps the load up."""
        async with AsyncClient(*addresses) as client:
            self.expected = [await self.read(client, seed, 0) for seed in range(6)]
        tasks = [asyncio.create_task(self._client(addresses, who)) for who in range(NUM_CLIENTS)]
        try:
            yield
            await self.more_texts(2 * NUM_CLIENTS)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def more_texts(self, count: int) -> None:
        """Until so many more have been read."""
        wanted = self.num_texts + count
        await until(lambda: self.num_texts >= wanted or bool(self.wrong))
        assert not self.wrong, self.wrong


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        for _ in iter(is_so, True):
            await asyncio.sleep(0.01)


async def ask(cluster: Cluster, method: str, *args: Any) -> Any:
    """Calls the controller, also while it starts anew."""
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                return await asyncio.to_thread(cluster.call, method, *args)
            except Exception as error:  # Ray's errors of an actor that starts again
                if "Actor" not in type(error).__name__:
                    raise
                await asyncio.sleep(0.2)


async def members(cluster: Cluster) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in (await ask(cluster, "status"))["members"]}


async def doors(cluster: Cluster) -> tuple[str, ...]:
    """Where clients go."""
    return tuple(
        each["address"] for each in (await members(cluster)).values() if each["kind"] == "coordinator"
    )


async def num_running(cluster: Cluster) -> int:
    """Texts and questions under way, at all replicas and coordinators."""
    seen = (await ask(cluster, "status"))["coordinators"]
    total = sum(each["num_running"] for found in seen.values() for each in found["replicas"])
    for address in await doors(cluster):
        async with AsyncClient(address) as client:
            info = await client.server_info()
            total += info.num_running + info.num_waiting
    return total


async def until_idle(cluster: Cluster) -> None:
    async with asyncio.timeout(SECONDS):
        while True:
            if not await num_running(cluster):
                return
            await asyncio.sleep(0.2)
