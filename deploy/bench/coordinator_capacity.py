"""Yardstick `coordinator-capacity`: request-rounds a second that one coordinator drives.

64 requests at a time, 16 KiB of features each round, services that answer from a script, clients in
another process. On a machine with fewer cores than there are processes the others take time that
the coordinator could use: so what a request-round costs the coordinator's own process stands beside.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

from deploy.bench.fake_service import FakeStackOptions
from deploy.bench.fakes import FeatureShape
from deploy.bench.harness import BenchOptions, Outcome
from deploy.bench.round_overhead import ping_pong_ms
from deploy.bench.set_costs import uniform
from deploy.local import LocalStack, local_stack
from protos.errors import Unavailable

BAR = 2000.0
CONCURRENCY = 64
K = 7
# 16 KiB in float32.
SHAPE = FeatureShape(num_layers=4, width=1024)
RATE, COST, BARE = "request-rounds/s", "us of coordinator CPU a request-round", "bare ping-pong of 16 KiB, ms"


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def flood(address: str, concurrency: int, seconds: float) -> dict[str, Any]:
    """Clients in a process of their own.

    Raises:
        Unavailable: they failed.
    """
    flags = ("--concurrency", str(concurrency), "--seconds", str(seconds), "--k", str(K))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "deploy.bench.flood", address, *flags), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    if process.returncode != 0:
        raise Unavailable(f"the clients ended with exit code {process.returncode}")
    record: dict[str, Any] = json.loads(out)
    return record


async def one_run(running: LocalStack, concurrency: int, seconds: float) -> list[dict[str, Any]]:
    """Rate and cost of one flood; the clients' own start is not in it."""
    pid = running.coordinator.pid
    before = cpu_seconds(pid)
    record = await running.guard(flood(running.coordinator.address, concurrency, seconds))
    cost = (cpu_seconds(pid) - before) / record["num_rounds"] * 1e6
    rate = record["num_rounds"] / record["seconds"]
    return [{"arm": RATE, "value": rate, **record}, {"arm": COST, "value": cost}]


async def measure(
    options: BenchOptions, concurrency: int = CONCURRENCY, seconds: float | None = None
) -> Outcome:
    """Runs the yardstick: medians over floods."""
    num_runs, seconds = (8, seconds or 20.0) if options.full else (5, seconds or 8.0)
    stack = FakeStackOptions(acceptance=uniform(1.0, K), shape=SHAPE, is_lean=True)
    runs: list[dict[str, Any]] = []
    async with local_stack(stack, options.say) as running:
        await one_run(running, concurrency, seconds / 4)
        for _ in range(num_runs):
            found = await one_run(running, concurrency, seconds)
            bare = await ping_pong_ms(SHAPE.num_layers * SHAPE.width * 4, 50)
            options.say(
                f"{found[0]['value']:.0f} {RATE}, {found[1]['value']:.0f} {COST}, ping-pong {bare:.2f} ms"
            )
            runs += [*found, {"arm": BARE, "value": bare}]
    return judge(runs)


def judge(runs: list[dict[str, Any]]) -> Outcome:
    """By the rate; the unit tells the cost, so that the table of results shows both."""
    value, cost = (
        statistics.median(float(run["value"]) for run in runs if run["arm"] == arm) for arm in (RATE, COST)
    )
    return Outcome(value, f"{RATE}; {cost:.0f} {COST}", BAR, value >= BAR, runs)
