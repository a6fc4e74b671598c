"""Tenants at a served coordinator: over TLS, with tokens, each on its own (CLUSTER, security)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from coordinator.client import AsyncClient
from coordinator.startup import RunningCoordinator, start_coordinator
from deploy.certs import make_certificates
from protos import coordinator_pb2 as pb
from protos import rpc
from protos.errors import Busy, Forbidden
from protos.security import ClientSecurity, Endpoint
from protos.statuses import error_from
from protos.tokens import token_hash
from tests.coordinator_fakes import TableEngine, counting
from tests.coordinator_harness import make_config, request, serve_target

TOKENS = {"token-of-a": "a", "token-of-b": "b", "token-of-the-operator": "op"}
LIMITS: dict[str, Any] = {"b": {"requests_per_minute": 3}, "op": {"operator": True}}


@dataclass(frozen=True)
class Served:
    running: RunningCoordinator
    engine: TableEngine
    ca: bytes

    def endpoint(self, token: str) -> Endpoint:
        return Endpoint(self.running.address, ClientSecurity(ca=self.ca, token=token))

    def client(self, token: str) -> AsyncClient:
        return AsyncClient(self.endpoint(token))


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Served]:
    make_certificates(folder, ["coordinator"], [])
    entries = [{"sha256": token_hash(token), "tenant": tenant} for token, tenant in TOKENS.items()]
    (folder / "tokens.yaml").write_text(yaml.safe_dump({"tokens": entries, "tenants": LIMITS}))
    engine = TableEngine(counting)
    async with serve_target(engine) as (address, _):
        running = await start_coordinator(
            make_config(
                target_address=address,
                tls_cert=folder / "coordinator.pem",
                tls_key=folder / "coordinator-key.pem",
                auth_tokens=folder / "tokens.yaml",
            )
        )
        try:
            yield Served(running, engine, (folder / "ca.pem").read_bytes())
        finally:
            await running.stop()


async def test_requests_of_one_id_are_each_tenants_own(tmp_path: Path) -> None:
    async with served(tmp_path) as system, system.client("token-of-a") as a, system.client("token-of-b") as b:
        message = request(max_tokens=200, request_id="same")
        other = request(max_tokens=30, request_id="same", token_ids=[7, 8])
        streams = [a.generate(message), b.generate(other)]
        started = [await anext(stream) for stream in streams]
        assert [each.started.request_id for each in started] == ["same", "same"]
        assert await b.abort("same")
        assert not await b.set_speculation("same", pb.Speculation())
        left = [response async for response in streams[0]]
        assert left[-1].finished.usage.completion_tokens == 200


async def test_quotas_refuse_with_the_time_to_retry(tmp_path: Path) -> None:
    async with served(tmp_path) as system, system.client("token-of-a") as a, system.client("token-of-b") as b:
        for _ in range(3):
            await b.complete(request(max_tokens=2))
        with pytest.raises(Busy, match="3 requests a minute") as caught:
            await b.complete(request(max_tokens=2))
        assert caught.value.retry_after_seconds is not None
        assert len((await a.complete(request(max_tokens=2))).token_ids) == 2


async def test_who_watches_everybody_is_an_operator(tmp_path: Path) -> None:
    async with served(tmp_path) as system:
        for token, allowed in (("token-of-a", False), ("token-of-the-operator", True)):
            async with rpc.open_channel(system.endpoint(token)) as channel:
                method: Any = channel.unary_unary("/dlite.v1.Coordinator/GetStats")
                call = asyncio.ensure_future(method(b"", timeout=5.0))
                await asyncio.wait({call})
                error = call.exception()
                assert (error is None) == allowed
                assert error is None or isinstance(error_from(error), Forbidden)


async def test_sessions_and_pages_are_each_tenants_own(tmp_path: Path) -> None:
    async with served(tmp_path) as system, system.client("token-of-a") as a, system.client("token-of-b") as b:
        memory = system.running.coordinator._memory
        for client in (a, b):
            await client.ask("Hello", session_id="mine", max_tokens=3, temperature=0.0)
        assert [len(memory.turns(name)) for name in ("mine", "a:mine", "b:mine")] == [0, 1, 1]
        salts = set(system.engine.salts)
        assert len(salts) == 2
        assert b"" not in salts
