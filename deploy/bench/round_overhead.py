"""Yardstick `round-overhead`: a round's time when nothing computes.

One request on loopback; the features are those of a large model (D 4096, m 14, bfloat16 as such a
model computes: 112 KiB to the coordinator and on to the drafter each round). Beside it stands the
machine's bare gRPC ping-pong with a message of that size.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

import grpc

from coordinator.client import AsyncClient
from deploy.bench.fake_service import FakeStackOptions
from deploy.bench.fakes import FeatureShape
from deploy.bench.harness import BenchOptions, Outcome
from deploy.bench.set_costs import uniform
from deploy.local import local_stack
from protos import coordinator_pb2, rpc

BAR_MS = 3.0
K = 7
SHAPE = FeatureShape(num_layers=14, width=4096, dtype="bf16")
_FEATURE_BYTES = SHAPE.num_layers * SHAPE.width * 2


async def round_ms(client: AsyncClient, max_tokens: int) -> float:
    """Milliseconds a round of one request whose proposals are all accepted."""
    request = coordinator_pb2.GenerateRequest(
        token_ids=[1, 2, 3],
        max_tokens=max_tokens,
        temperature=0.0,
        speculation=coordinator_pb2.Speculation(source=coordinator_pb2.PROPOSAL_SOURCE_DRAFTER),
    )
    first: float | None = None
    rounds = 0
    async for message in client.generate(request):
        if message.HasField("delta"):
            first = time.perf_counter() if first is None else first
            last = time.perf_counter()
        elif message.HasField("finished"):
            rounds = message.finished.ledger.num_draft_rounds
    assert first is not None
    return (last - first) / rounds * 1e3


async def ping_pong_ms(num_bytes: int, count: int) -> float:
    """Median round trip of one message on a bare bidirectional stream of this machine."""

    async def echo(_requests: Any, context: rpc.Context) -> None:
        while isinstance(data := await context.read(), bytes):
            await context.write(data)

    method: Any = grpc.stream_stream_rpc_method_handler(echo)
    running = await rpc.start_server(rpc.Service("dlite.bench.Echo", {"Ping": method}), "127.0.0.1:0")
    payload = bytes(num_bytes)
    times = []
    async with rpc.open_channel(running.address) as channel:
        call: Any = channel.stream_stream("/dlite.bench.Echo/Ping")()
        for _ in range(count):
            started = time.perf_counter()
            await call.write(payload)
            await call.read()
            times.append(time.perf_counter() - started)
        call.cancel()
    await running.stop(0)
    return statistics.median(times) * 1e3


async def measure(options: BenchOptions) -> Outcome:
    """Runs the yardstick: medians over runs of 100 rounds."""
    num_runs = 20 if options.full else 8
    stack = FakeStackOptions(acceptance=uniform(1.0, K), shape=SHAPE)
    runs: list[dict[str, Any]] = []
    async with local_stack(stack, options.say) as running, AsyncClient(running.coordinator.address) as client:
        await running.guard(round_ms(client, 100 * (K + 1)))
        for _ in range(num_runs):
            value = await running.guard(round_ms(client, 100 * (K + 1)))
            bare = await ping_pong_ms(_FEATURE_BYTES, 50)
            options.say(f"round {value:.2f} ms, bare ping-pong of {_FEATURE_BYTES} bytes {bare:.2f} ms")
            runs += [{"arm": "round", "value": value}, {"arm": "bare ping-pong", "value": bare}]
            await asyncio.sleep(0)
    value = statistics.median(run["value"] for run in runs if run["arm"] == "round")
    return Outcome(value, "ms a round, p50 of runs", BAR_MS, value <= BAR_MS, runs)
