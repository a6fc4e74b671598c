"""A tenant that floods, and another that goes on as before (CLUSTER, security).

Services have set costs: a step takes the same time whatever is in it. So the other tenant loses what it waits
for a place, and up to two steps at a text's start, as in any busy target: its Open comes in the middle of
a step, and so does its Run.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import yaml

from coordinator.client import AsyncClient
from deploy.bench.fake_service import FakeStackOptions
from deploy.bench.set_costs import parse_verify_costs
from deploy.certs import make_certificates
from deploy.local import LocalStack, local_stack
from protos import coordinator_pb2 as pb
from protos.errors import Busy
from protos.security import ClientSecurity, Endpoint
from protos.tokens import token_hash

MAX_RUNNING, NUM_FLOODING, NUM_TEXTS, TOKENS = 16, 60, 20, 24
STEP_SECONDS = 0.03


def flags(folder: Path) -> tuple[str, ...]:
    make_certificates(folder, ["coordinator"], [])
    document = {
        "tokens": [{"sha256": token_hash(name), "tenant": name} for name in ("flood", "other")],
        "tenants": {"default": {"max_running": MAX_RUNNING - 4}},
    }
    (folder / "tokens.yaml").write_text(yaml.safe_dump(document))
    (folder / "dlite.yaml").write_text(yaml.safe_dump({"coordinator": {"max_running": MAX_RUNNING}}))
    return (
        *("--config", str(folder / "dlite.yaml"), "--auth-tokens", str(folder / "tokens.yaml")),
        *("--tls-cert", str(folder / "coordinator.pem"), "--tls-key", str(folder / "coordinator-key.pem")),
    )


def request() -> pb.GenerateRequest:
    return pb.GenerateRequest(token_ids=[1, 2, 3], max_tokens=TOKENS, temperature=0.0)


async def seconds_of_texts(client: AsyncClient, count: int) -> list[float]:
    loop = asyncio.get_running_loop()
    seconds = []
    for _ in range(count):
        began = loop.time()
        await client.complete(request())
        seconds.append(loop.time() - began)
    return seconds


async def flood(client: AsyncClient) -> None:
    """Asks again and again, also when it is told to wait."""
    while True:
        try:
            await client.complete(request())
        except Busy:
            await asyncio.sleep(0.01)  # a flood: it does not wait as it is told


def p99(seconds: list[float]) -> float:
    return sorted(seconds)[int(0.99 * (len(seconds) - 1))]


async def measure(stack: LocalStack, ca: bytes) -> tuple[list[float], list[float]]:
    """Seconds of the other tenant's texts, alone and during the flood, in turns."""
    address = stack.coordinator.address
    alone: list[float] = []
    flooded: list[float] = []
    async with (
        AsyncClient(Endpoint(address, ClientSecurity(ca=ca, token="other"))) as other,
        AsyncClient(Endpoint(address, ClientSecurity(ca=ca, token="flood"))) as flooder,
    ):
        await seconds_of_texts(other, 5)
        for _ in range(2):
            alone += await seconds_of_texts(other, NUM_TEXTS)
            tasks = [asyncio.create_task(flood(flooder)) for _ in range(NUM_FLOODING)]
            await seconds_of_texts(other, 3)  # until the flood is there
            flooded += await seconds_of_texts(other, NUM_TEXTS)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return alone, flooded


@pytest.mark.prove
@pytest.mark.timeout(900)
async def test_a_flooding_tenant_costs_another_less_than_a_fifth_of_its_p99(tmp_path: Path) -> None:
    options = FakeStackOptions(
        target_costs=parse_verify_costs(f"512:{STEP_SECONDS}"), coordinator_flags=flags(tmp_path)
    )
    async with local_stack(options) as stack:
        alone, flooded = await measure(stack, (tmp_path / "ca.pem").read_bytes())
    assert p99(flooded) < 1.2 * p99(alone), f"p99 {p99(flooded):.3f} s, alone {p99(alone):.3f} s"
