"""Yardstick `round-overhead`: a round's time when nothing computes.

One request on loopback; the features are those of a large model (D 4096, m 14) in float32: 224 KiB
to the coordinator and on to the drafter in each round. Beside it stand the same round with bfloat16
features, as such a model on a GPU sends them, and the machine's bare gRPC ping-pong with a message
of the float32 size.
"""

from __future__ import annotations

import statistics
import time
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import grpc

from coordinator.client import AsyncClient
from deploy.bench.fake_cluster import Start, Variant, fronts
from deploy.bench.fake_service import FakeStackOptions
from deploy.bench.fakes import FeatureShape
from deploy.bench.harness import BenchOptions, Measure, Outcome, interleave
from deploy.bench.rounds import counting_request, fixed_rounds, take
from deploy.bench.set_costs import uniform
from protos import rpc

BAR_MS = 3.0
K = 7
JUDGED = FeatureShape(num_layers=14, width=4096)
HALVED = FeatureShape(num_layers=14, width=4096, dtype="bf16")
_ROUND, _HALVED, _BARE = "round", "round, bf16 features", "bare ping-pong"
_FEATURE_BYTES = JUDGED.num_layers * JUDGED.width * 4
_PINGS = 50


async def round_ms(client: AsyncClient, num_rounds: int) -> float:
    """Milliseconds a round of one request whose proposals are all accepted."""
    text = await take(client, counting_request("", 1 + num_rounds * (K + 1), fixed_rounds(K)))
    return text.round_seconds * 1e3


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


async def measure(options: BenchOptions, num_rounds: int = 100, start: Start = fronts) -> Outcome:
    """Runs the yardstick: medians over runs of so many rounds."""
    num_cycles = 20 if options.full else 8
    async with AsyncExitStack() as entered:
        arms: dict[str, Measure] = {}
        for name, shape in ((_ROUND, JUDGED), (_HALVED, HALVED)):
            stack = FakeStackOptions(acceptance=uniform(1.0, K), shape=shape)
            running, found = await entered.enter_async_context(start(stack, {name: Variant()}, options.say))
            client = found[name].client
            await running.guard(round_ms(client, num_rounds))
            arms[name] = partial(round_ms, client, num_rounds)
        arms[_BARE] = partial(ping_pong_ms, _FEATURE_BYTES, _PINGS)
        runs = await interleave(arms, num_cycles, options.say)
    value = statistics.median(run["value"] for run in runs if run["arm"] == _ROUND)
    return Outcome(value, "ms a round, p50 of runs, f32 features", BAR_MS, value <= BAR_MS, runs)
