"""Yardstick `wire`: what a round sends does not grow with the context, and nothing of it stays behind.

Three parts, on the real services with models that cost nothing: bytes a round at context 4096 against
256 (the difference of two texts, so that opening them cancels out); bytes of features with speculation
off; memory of the drafter's process after 1,000 requests against after 100.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coordinator.client import AsyncClient
from deploy.bench.fake_service import FakeStackOptions
from deploy.bench.fakes import VOCAB_SIZE, FeatureShape
from deploy.bench.harness import BenchOptions, Outcome
from deploy.bench.rounds import fixed_rounds
from deploy.bench.set_costs import uniform
from deploy.local import LocalStack, local_stack
from protos import coordinator_pb2

BAR = 1.0
K = 7
SHAPE = FeatureShape(num_layers=14, width=4096)
CONTEXTS = (256, 4096)
# Rounds of the shorter and the longer text.
ROUNDS = (10, 60)
NUM_REQUESTS = (100, 1000)
MEMORY_TOLERANCE = 0.02
# Positions and lengths are written in 2 bytes from 128 to 16383, so a round's bytes are equal.
BYTES_TOLERANCE = 0.005
_CONCURRENCY = 8
_ROUNDS_OF_A_SHORT_REQUEST = 3


def request(context: int, num_rounds: int, *, speculates: bool = True) -> coordinator_pb2.GenerateRequest:
    """A text of `num_rounds` rounds, all of whose proposals are accepted."""
    speculation = fixed_rounds(K)
    if not speculates:
        speculation.mode = coordinator_pb2.SPECULATION_MODE_OFF
    return coordinator_pb2.GenerateRequest(
        token_ids=[token % VOCAB_SIZE for token in range(context)],
        max_tokens=1 + num_rounds * (K + 1),
        temperature=0.0,
        speculation=speculation,
    )


async def total_bytes(client: AsyncClient, context: int, num_rounds: int) -> int:
    """Of one request, over both links."""
    ledger = (await client.complete(request(context, num_rounds))).finished.ledger
    assert ledger.num_draft_rounds == num_rounds, "a round went without the drafter"
    return int(ledger.draft_bytes + ledger.target_bytes)


async def round_bytes(client: AsyncClient, context: int) -> float:
    """Bytes that one more round costs."""
    short, long = [await total_bytes(client, context, rounds) for rounds in ROUNDS]
    return (long - short) / (ROUNDS[1] - ROUNDS[0])


async def feature_bytes_without_speculation(client: AsyncClient) -> int:
    answer = await client.complete(request(CONTEXTS[0], ROUNDS[0], speculates=False))
    return int(answer.finished.ledger.feature_bytes)


async def ask_many(client: AsyncClient, count: int) -> None:
    """Short requests, several at a time."""
    left: Iterator[int] = iter(range(count))

    async def worker() -> None:
        for _ in left:
            await client.complete(request(CONTEXTS[0], _ROUNDS_OF_A_SHORT_REQUEST))

    await asyncio.gather(*(worker() for _ in range(_CONCURRENCY)))


def resident_mib(pid: int) -> float:
    """Memory of a process that is in RAM."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise OSError(f"/proc/{pid}/status tells no VmRSS")


async def drafter_mib(running: LocalStack, client: AsyncClient, count: int) -> float:
    """Memory of the drafter's process after so many more requests."""
    assert running.draft is not None
    await ask_many(client, count)
    return resident_mib(running.draft.pid)


async def measure(options: BenchOptions) -> Outcome:
    """Runs the yardstick; its value is the ratio of bytes a round."""
    runs: list[dict[str, Any]] = []

    def note(arm: str, value: float) -> float:
        options.say(f"{arm}: {value:.6g}")
        runs.append({"arm": arm, "value": value})
        return value

    stack = FakeStackOptions(acceptance=uniform(1.0, K), shape=SHAPE)
    async with local_stack(stack, options.say) as running, AsyncClient(running.coordinator.address) as client:
        sizes = [
            note(f"bytes a round, context {context}", await running.guard(round_bytes(client, context)))
            for context in CONTEXTS
        ]
        features = note(
            "feature bytes, speculation off", await running.guard(feature_bytes_without_speculation(client))
        )
        first, last = NUM_REQUESTS
        before = note(
            f"drafter MiB after {first} requests", await running.guard(drafter_mib(running, client, first))
        )
        after = note(
            f"drafter MiB after {last} requests",
            await running.guard(drafter_mib(running, client, last - first)),
        )
    ratio = sizes[1] / sizes[0]
    passed = (
        abs(ratio - BAR) <= BYTES_TOLERANCE
        and features == 0
        and abs(after / before - 1.0) <= MEMORY_TOLERANCE
    )
    return Outcome(ratio, "bytes a round at 4096 / at 256", BAR, passed, runs)
