"""Alive is not ready: what the probes of a supervisor and of Kubernetes are told (CLUSTER, Ray)."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from grpc_health.v1 import health_pb2
from prometheus_client import CollectorRegistry

from coordinator import admin
from coordinator.admin import AdminServer
from deploy.supervision import RestartPolicy, _until_silent
from draft_service.batcher import Batcher
from protos import rpc
from protos.liveness import Liveness
from target_service.engine_thread import EngineThread

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
CHECK = "/grpc.health.v1.Health/Check"


async def health(address: str, service: str) -> int:
    request = health_pb2.HealthCheckRequest(service=service).SerializeToString()
    async with rpc.open_channel(address) as channel:
        check: Any = channel.unary_unary(CHECK)
        return health_pb2.HealthCheckResponse.FromString(await check(request, timeout=10)).status


async def until_health(address: str, wanted: int) -> None:
    for _ in range(1000):
        if await health(address, rpc.LIVENESS) == wanted:
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"never {wanted}")


async def test_work_that_does_not_get_on_is_not_alive_and_then_is_again() -> None:
    stuck = 0.0
    server = await rpc.start_server(rpc.Service("test.Nothing", {}), "127.0.0.1:0")
    liveness = Liveness(server, lambda: stuck, stall_seconds=10.0, look_seconds=0.005)
    try:
        await until_health(server.address, SERVING)
        assert await health(server.address, "") == NOT_SERVING  # alive, but not ready yet
        stuck = 11.0
        await until_health(server.address, NOT_SERVING)
        stuck = 0.5
        await until_health(server.address, SERVING)
    finally:
        await liveness.stop()
        await server.stop(0)


async def test_a_supervisor_ends_what_says_that_it_hangs() -> None:
    policy = RestartPolicy(probe_every=0.01, max_silent=2)
    server = await rpc.start_server(rpc.Service("test.Nothing", {}), "127.0.0.1:0")
    liveness = Liveness(server, lambda: stuck, stall_seconds=10.0, look_seconds=0.005)
    stuck = 0.0
    try:
        watch = asyncio.create_task(_until_silent(server.address, policy))
        done, _ = await asyncio.wait({watch}, timeout=0.3)
        assert not done, "it is not ready, but it is alive"
        stuck = 11.0
        await asyncio.wait_for(watch, 30)
    finally:
        await liveness.stop()
        await server.stop(0)


class _Engine:
    """One step that takes until it is let go."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.let_go = threading.Event()
        self.in_step = threading.Event()

    def has_work(self) -> bool:
        return not self.let_go.is_set()

    def step(self) -> list[Any]:
        self.in_step.set()
        assert self.let_go.wait(30)
        self.num_steps += 1
        return []

    class requests:
        @staticmethod
        def check_integrity() -> None:
            return


def test_an_engines_step_that_does_not_end_is_seen() -> None:
    engine: Any = _Engine()
    thread = EngineThread(engine, lambda _id, _events: None, 1, lambda _error: None)
    assert thread.stuck_seconds() == 0.0
    thread.start()
    assert engine.in_step.wait(30)
    time.sleep(0.02)
    assert thread.stuck_seconds() >= 0.02
    engine.let_go.set()
    for _ in range(1000):
        if not thread.stuck_seconds():
            break
        time.sleep(0.005)
    assert thread.stuck_seconds() == 0.0, "an engine without work is not stuck"
    thread.stop()


class _Drafter:
    """A batch that takes until it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.in_batch = threading.Event()

    def self_test(self) -> None:
        return

    def propose(self, items: list[Any]) -> list[Any]:
        self.in_batch.set()
        assert self.let_go.wait(30)
        return [None for _ in items]


class _Owner:
    def deliver(self, answers: Any) -> None:
        return


async def test_a_drafters_batch_that_does_not_end_is_seen() -> None:
    from draft_service.batcher import Ticket

    drafter: Any = _Drafter()
    batcher = Batcher(drafter)
    await batcher.start()
    item: Any = None
    batcher.submit(Ticket(item, 1, 1, _Owner(), 0.0, None))
    assert await asyncio.to_thread(drafter.in_batch.wait, 30)
    await asyncio.sleep(0.02)
    assert batcher.stuck_seconds() >= 0.02
    drafter.let_go.set()
    for _ in range(1000):
        if not batcher.stuck_seconds():
            break
        await asyncio.sleep(0.005)
    assert batcher.stuck_seconds() == 0.0
    await batcher.stop()


async def test_an_event_loop_that_hangs_is_not_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """The admin port has a thread of its own: it must not answer for a loop that does not turn."""
    monkeypatch.setattr(admin, "LOOP_SECONDS", 0.2)
    server = AdminServer("127.0.0.1:0", CollectorRegistry(), lambda: True)
    found: list[bool] = []
    try:
        assert await asyncio.to_thread(server._loop_answers)
        asker = threading.Thread(target=lambda: found.append(server._loop_answers()))
        asker.start()
        time.sleep(0.6)  # noqa: ASYNC251 - a loop that hangs
        asker.join()
        assert found == [False]
        assert await asyncio.to_thread(server._loop_answers)
    finally:
        await asyncio.to_thread(server.stop)
