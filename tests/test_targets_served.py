"""Several targets over gRPC: hangs, refusals, and the operator's commands under load."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from coordinator.client import AsyncClient
from coordinator.replicas_remote import list_replicas, set_replicas, state_name
from coordinator.startup import RunningCoordinator, start_coordinator
from coordinator.trace.remote import explain_tuner, get_stats
from coordinator.trace.snapshot import snapshot
from deploy.cli import run
from protos import coordinator_pb2, rpc, target_pb2
from protos.errors import InvalidRequest
from tests.coordinator_fakes import TableEngine, counting
from tests.coordinator_harness import TargetServer, make_config, request, serve_target
from tests.target_world import settles
from tests.test_coordinator_server import health_of

OFF = coordinator_pb2.SPECULATION_MODE_OFF
COUNT = 150
TEXT = [counting([0] * index) for index in range(COUNT)]
SERVING = 1


class HangingEngine(TableEngine):
    """Takes nothing and says nothing while `hangs`, which it begins after so many steps."""

    def __init__(self) -> None:
        super().__init__(counting)
        self.hangs = False
        self.hangs_after = -1

    def handle(self, command: target_pb2.Command) -> list[target_pb2.Event]:
        return [] if self.hangs else super().handle(command)

    def step(self) -> list[target_pb2.Event]:
        self.hangs_after -= 1
        self.hangs = self.hangs or self.hangs_after == 0
        return [] if self.hangs else super().step()


@asynccontextmanager
async def fleet(
    number: int, describe: dict[int, dict[str, Any]] | None = None, **config: Any
) -> AsyncIterator[tuple[RunningCoordinator, AsyncClient, list[tuple[str, TargetServer]]]]:
    """A coordinator and so many targets."""
    async with AsyncExitStack() as stack:
        targets = [
            await stack.enter_async_context(serve_target(HangingEngine(), **(describe or {}).get(index, {})))
            for index in range(number)
        ]
        addresses = ",".join(address for address, _ in targets)
        running = await start_coordinator(make_config(target_address=addresses, **config))
        stack.push_async_callback(running.stop)
        client = await stack.enter_async_context(AsyncClient(running.address))
        await settles(lambda: all(each.state for each in running.replicas.targets.replicas()))
        yield running, client, targets


def states(running: RunningCoordinator) -> list[str]:
    return [state_name(each.state) for each in running.replicas.targets.replicas()]


def tokens_of(index: int) -> list[int]:
    return [index + 1] * 40


async def text_of(client: AsyncClient, index: int, **fields: Any) -> list[int]:
    answer = await client.complete(request(token_ids=tokens_of(index), max_tokens=COUNT, **fields))
    return answer.token_ids


async def test_a_target_that_hangs_loses_its_texts_to_another_and_gets_none_until_it_lives() -> None:
    config = {"hang_seconds": 0.3, "drain_seconds": 0.0, "target_loss_seconds": 5.0}
    async with fleet(2, **config) as (running, client, ((_, first), (_, second))):
        await settles(lambda: states(running) == ["serving"] * 2)
        assert isinstance(first.engine, HangingEngine)
        first.engine.hangs_after = 30
        texts = await asyncio.gather(*(text_of(client, index, mode=OFF) for index in range(6)))
        assert texts == [TEXT] * 6
        assert first.engine.hangs
        assert any(TEXT[5] in opened[41:] for opened in second.engine.opened), "in the middle of a text"
        # Its streams are taken, but its engine says nothing.
        await settles(lambda: first.num_streams > 1)
        num_opened = len(second.engine.opened)
        assert await text_of(client, 7) == TEXT
        assert len(second.engine.opened) == num_opened + 1
        assert states(running) == ["lost", "serving"]
        assert await health_of(running.address) == SERVING
        first.engine.hangs = False
        await first.cut()
        await settles(lambda: states(running) == ["serving"] * 2)
        await asyncio.sleep(0.6)  # the breaker's pause
        texts = await asyncio.gather(*(text_of(client, index) for index in range(8, 14)))
        assert texts == [TEXT] * 6
        assert len(first.engine.opened) > 0
        await settles(lambda: not first.engine.sequences and not second.engine.sequences)


async def test_a_coordinator_starts_with_whom_is_there_and_takes_up_the_rest() -> None:
    async with serve_target(HangingEngine()) as (there, _):
        async with serve_target(HangingEngine()) as (late, _):
            pass
        running = await start_coordinator(make_config(target_address=f"{late},{there}"))
        try:
            assert states(running) == ["connecting", "serving"]
            async with AsyncClient(running.address) as client:
                assert await text_of(client, 0) == TEXT
                async with serve_target(HangingEngine(), late):
                    await settles(lambda: states(running) == ["serving"] * 2)
                await settles(lambda: states(running) == ["lost", "serving"])
                assert await health_of(running.address) == SERVING
                assert await text_of(client, 1) == TEXT
        finally:
            await running.stop()


async def test_another_model_is_refused_and_the_first_one_named_decides() -> None:
    async with fleet(3, {0: {"fingerprint": "a" * 64}}) as (running, client, targets):
        await settles(lambda: states(running) == ["serving", "refused", "refused"])
        assert await text_of(client, 0) == TEXT
        assert not targets[1][1].engine.log
        refused = (await list_replicas(running.address)).replicas[1]
        assert refused.address == targets[1][0]
        assert "serves" in refused.last_error
        assert refused.fingerprint == ""


async def test_replicas_set_under_load_lose_no_request() -> None:
    config = {"drain_seconds": 0.05, "max_running": 4}
    async with fleet(3, **config) as (running, client, targets):
        await settles(lambda: states(running) == ["serving"] * 3)
        addresses = [address for address, _ in targets]
        texts = [asyncio.create_task(text_of(client, index)) for index in range(24)]
        for there in ([1, 2], [2], [0, 2], [0], [0, 1, 2], [1]):
            wanted = [addresses[index] for index in there]
            told = await set_replicas(running.address, wanted, None)
            assert {each.address for each in told} >= set(wanted)
            await asyncio.sleep(0.1)
        assert await asyncio.gather(*texts) == [TEXT] * 24
        await settles(lambda: states(running) == ["serving"])
        for _, server in targets:
            await settles(lambda server=server: not server.engine.sequences)  # type: ignore[misc]


async def test_what_is_told_of_replicas(capsys: pytest.CaptureFixture[str]) -> None:
    async with fleet(2) as (running, client, targets):
        await settles(lambda: states(running) == ["serving"] * 2)
        await asyncio.gather(*(text_of(client, index) for index in range(4)))
        addresses = [address for address, _ in targets]
        found = await list_replicas(running.address)
        assert [each.address for each in found.replicas] == addresses
        assert [each.num_served for each in found.replicas] == [2, 2]
        assert [each.kind for each in found.replicas] == [coordinator_pb2.REPLICA_KIND_TARGET] * 2

        def command(*words: str) -> dict[str, Any]:
            with pytest.raises(SystemExit) as ended:
                run(["replicas", *words, "--address", running.address, "--json"])
            assert ended.value.code == 0
            document: dict[str, Any] = json.loads(capsys.readouterr().out)
            return document

        shown = await asyncio.to_thread(command)
        assert [each["state"] for each in shown["replicas"]] == ["serving"] * 2
        changed = await asyncio.to_thread(command, "set", "--target-address", addresses[1])
        assert [each["state"] for each in changed["replicas"]] == ["draining", "serving"]
        await settles(lambda: states(running) == ["serving"])
        changed = await asyncio.to_thread(command, "set", "--draft-address", "127.0.0.1:1")
        assert [(each["kind"], each["state"]) for each in changed["replicas"]] == [
            ("target", "serving"),
            ("drafter", "connecting"),
        ]
        assert await text_of(client, 9) == TEXT


async def test_links_and_tuners_are_told_for_each_target() -> None:
    async with fleet(2) as (running, client, targets):
        await settles(lambda: states(running) == ["serving"] * 2)
        await asyncio.gather(*(text_of(client, index) for index in range(4)))
        addresses = [address for address, _ in targets]
        async with rpc.open_channel(running.address) as channel:
            stats = await get_stats(channel)
        assert [(each.name, each.address) for each in stats.links] == [("target", it) for it in addresses]
        names = [each.name for each in snapshot(stats, stats).links]
        assert names == [f"target {address}" for address in addresses]
        for address in addresses:
            assert (await explain_tuner(running.address, address)).target_address == address
        assert (await explain_tuner(running.address)).target_address in addresses
        with pytest.raises(InvalidRequest, match="there is no target"):
            await explain_tuner(running.address, "nowhere:1")


async def test_lists_that_name_nobody_or_one_twice_are_refused_whole() -> None:
    async with fleet(1) as (running, _, ((address, _),)):
        for wrong in (["a:1", "a:1"], [""], ["a:1,b:1"], [" a:1"]):
            with pytest.raises(InvalidRequest):
                await set_replicas(running.address, wrong, None)
            with pytest.raises(InvalidRequest):
                await set_replicas(running.address, ["other:1"], wrong)
        assert [each.address for each in running.replicas.targets] == [address]
        assert run(["replicas", "set", "--address", running.address]) == 2
        assert run(["replicas", "set", "--target-address", "", "--address", running.address]) == 2
