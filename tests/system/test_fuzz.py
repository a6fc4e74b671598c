"""Malformed and hostile messages of every type, at all three services over gRPC (CLUSTER, Faults).

Each is answered by a clean status, the servers live on, and what others ask meanwhile is answered as if
nothing had happened.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from coordinator.replicas_remote import list_replicas
from deploy.bench.fuzzing import SECONDS, Addresses, Fuzz, call, converse
from protos import coordinator_pb2, rpc
from tests.fakes import GOLDEN
from tests.system import stack as system
from tests.system.stack import Stack, golden_target, stack

DRAFT = GOLDEN / "draft_trained_g1"
GOOD = system.request([9, 10, 11], 40)


async def good_requests(running: Stack, expected: list[int], done: asyncio.Event) -> int:
    """Asks, one after the other, until the others are done; each text is as it was before them."""
    num = 0
    while not done.is_set():
        reply = await system.ask(running.coordinator.address, GOOD)
        assert reply.token_ids == expected
        num += 1
    return num


async def health(address: str) -> int:
    async with rpc.open_channel(address) as channel:
        method: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
        data = await method(health_pb2.HealthCheckRequest().SerializeToString(), timeout=SECONDS)
    return int(health_pb2.HealthCheckResponse.FromString(data).status)


@asynccontextmanager
async def harmless(running: Stack) -> AsyncIterator[None]:
    """Good requests run meanwhile; at the end all serve, and pages are where they were."""
    assert running.draft is not None
    pool = running.target.service._built.engine.pool
    expected = (await system.ask(running.coordinator.address, GOOD)).token_ids
    done = asyncio.Event()
    good = asyncio.create_task(good_requests(running, expected, done))
    try:
        yield
    finally:
        done.set()
    assert await good > 0
    for address in (running.coordinator.address, running.target.address, running.draft.address):
        assert await health(address) == health_pb2.HealthCheckResponse.SERVING
    deadline = asyncio.get_running_loop().time() + SECONDS
    while running.coordinator.coordinator.num_running or pool.num_available < pool.num_pages:
        # What was left unread is freed when its stream has ended; neither end tells when.
        assert asyncio.get_running_loop().time() < deadline, "requests or pages are left"
        await health(running.target.address)
    assert not running.target.service.failed.is_set()


@asynccontextmanager
async def golden_stack() -> AsyncIterator[Stack]:
    async with stack(golden_target(DRAFT), DRAFT, source="drafter") as running:
        yield running


async def fuzz(count: int) -> Counter[grpc.StatusCode]:
    async with golden_stack() as running:
        assert running.draft is not None
        target, draft = running.target.address, running.draft.address
        sender = Fuzz(Addresses(running.coordinator.address, target, draft))
        async with harmless(running):
            await sender.everything(count)
    assert not sender.faults
    return sender.codes


async def test_a_few_hundred_hostile_messages_do_no_harm() -> None:
    codes = await fuzz(150)
    assert codes.total() >= 440
    assert codes[grpc.StatusCode.INVALID_ARGUMENT] > 100


@pytest.mark.prove
@pytest.mark.timeout(1800)
async def test_ten_thousand_hostile_messages_for_each_service_do_no_harm() -> None:
    codes = await fuzz(10_500)  # unary methods get less than their share
    assert codes.total() >= 30_000
    assert codes[grpc.StatusCode.INVALID_ARGUMENT] > 5_000


async def serving(address: str) -> set[str]:
    listed = (await list_replicas(address)).replicas
    return {each.address for each in listed if each.state == coordinator_pb2.REPLICA_STATE_SERVING}


async def test_hostile_lists_of_replicas_are_refused_or_undone() -> None:
    """A list that is well formed takes effect, so nobody is served meanwhile; the right one mends all."""
    async with golden_stack() as running:
        assert running.draft is not None
        addresses = Addresses(running.coordinator.address, running.target.address, running.draft.address)
        good = coordinator_pb2.SetReplicasRequest(
            target_addresses=[addresses.target], draft_addresses=[addresses.draft]
        )
        expected = (await system.ask(addresses.coordinator, GOOD)).token_ids
        sender = Fuzz(addresses)
        # A sixth of them for each method that is not Generate.
        await sender.unary(addresses.coordinator, "dlite.v1.Coordinator", {"SetReplicas": [good]}, 900)
        assert not sender.faults
        assert sender.codes[grpc.StatusCode.INVALID_ARGUMENT] > 60
        assert sender.codes[grpc.StatusCode.OK] > 10
        async with rpc.open_channel(addresses.coordinator) as channel:
            data = good.SerializeToString()
            assert await call(channel, "/dlite.v1.Coordinator/SetReplicas", data) is grpc.StatusCode.OK
        assert (await system.ask(addresses.coordinator, GOOD)).token_ids == expected
        deadline = asyncio.get_running_loop().time() + SECONDS
        while await serving(addresses.coordinator) != {addresses.target, addresses.draft}:
            assert asyncio.get_running_loop().time() < deadline, "the drafter does not come back"


async def test_24_mib_of_garbage_do_no_harm() -> None:
    garbage = bytes(range(256)) * (24 * 1024 * 1024 // 256)
    unlimited = [("grpc.max_send_message_length", -1)]
    async with golden_stack() as running, harmless(running):
        assert running.draft is not None
        methods = {
            running.coordinator.address: "/dlite.v1.Coordinator/Generate",
            running.target.address: "/dlite.v1.Target/Decode",
            running.draft.address: "/dlite.v1.Draft/Propose",
        }
        for address, method in methods.items():
            async with grpc.aio.insecure_channel(address, options=unlimited) as channel:
                code = await converse(channel, method, [garbage])
                assert code is grpc.StatusCode.RESOURCE_EXHAUSTED, method
