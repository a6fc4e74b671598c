"""The check of the model of a round on a real target, of the yardstick `spot-checks`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.client import AsyncClient
from coordinator.trace.format import Decoder
from coordinator.trace.record import RoundRecord, RoundSource
from coordinator.trace.remote import watch_rounds
from coordinator.tuner.costs import CostPriors, Costs
from deploy.bench.harness import abba
from deploy.bench.modelled import tau
from deploy.bench.rounds import take
from deploy.bench.tuner import speculation_of
from protos import coordinator_pb2, rpc

K = 7
ACCEPTANCE = 0.8
SIZES = (2, 4, 8)
# The feed of rounds tells in batches.
_LAST_RECORDS_SECONDS = 1.0


@dataclass(frozen=True)
class Recorded:
    """A prompt, and what the target says to it."""

    request_id: str
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]

    def request(self, arm: str) -> coordinator_pb2.GenerateRequest:
        """Greedy, to the same length in every arm."""
        return coordinator_pb2.GenerateRequest(
            request_id=self.request_id,
            token_ids=self.prompt_ids,
            max_tokens=len(self.answer_ids),
            temperature=0.0,
            ignore_eos=True,
            speculation=speculation_of(arm),
        )

    def line(self) -> str:
        """As `dlite draft --replay` reads it."""
        return json.dumps({"request_id": self.request_id, "token_ids": [*self.prompt_ids, *self.answer_ids]})


async def model_runs(
    client: AsyncClient, address: str, texts: Sequence[Recorded], num_cycles: int
) -> list[dict[str, Any]]:
    """One request after the other at fixed v: what the client saw, and what the model says."""
    seen: dict[int, list[tuple[float, float]]] = {v: [] for v in SIZES}
    async with watched(address) as records:
        for v in [int(name) for name in abba([str(v) for v in SIZES], num_cycles)]:
            for text in texts:
                found = await take(client, text.request(f"v = {v}"))
                seen[v].append((found.round_seconds, rate_of_whole_rounds(found.arrivals)))
    drafted = [record for record in records if record.source is RoundSource.DRAFTER]
    runs = []
    for v in SIZES:
        seconds, tau_seen = modelled_seconds(drafted, v), tau((ACCEPTANCE,) * K, v)
        seconds_seen, rates_seen = zip(*seen[v], strict=True)
        rounds, rates = statistics.median(seconds_seen), statistics.fmean(rates_seen)
        runs += [
            {"arm": f"round at v = {v}, ms", "value": 1e3 * rounds},
            {"arm": f"modelled round at v = {v}, ms", "value": 1e3 * seconds},
            {"arm": f"tokens/s at v = {v}", "value": rates},
            {"arm": "measured / modelled round", "value": rounds / seconds, "of": f"v = {v}"},
            {"arm": "measured / modelled tokens/s", "value": rates * seconds / tau_seen, "of": f"v = {v}"},
        ]
    return runs


def rate_of_whole_rounds(arrivals: Sequence[tuple[float, int]]) -> float:
    """Tokens/s of a text of two rounds or more, but for the last one, which the text's end cuts."""
    assert len(arrivals) > 2, "a first token, a whole round and a cut one"
    (started, _), *between = arrivals[:-1]
    return sum(count for _, count in between) / (between[-1][0] - started)


def modelled_seconds(records: Sequence[RoundRecord], v: int) -> float:
    """T_V(v) + T_D + T_net + T_S of one request, of what these records teach.

    The time of a round is no part of it: T_V and T_D are what the services tell of their steps, T_net and T_S
    the medians over rounds of **all** sizes.
    """
    costs = Costs(CostPriors())
    for record in records:
        if record.target_step.rows:
            costs.verify.note(record.target_step.rows, record.target_step.seconds, record.target_step.context)
        if record.draft_step.rows:
            costs.draft.note(record.draft_step.rows, record.draft_step.seconds, record.draft_step.context)
    context = round(statistics.fmean(record.context for record in records))
    parts = [record.parts for record in records]
    network = statistics.median(part.draft_network + part.target_network for part in parts)
    scheduling = statistics.median(part.queue + part.scheduling for part in parts)
    return costs.verify.seconds(v, context) + costs.draft.seconds(1, v - 1) + network + scheduling


@contextlib.asynccontextmanager
async def watched(address: str) -> AsyncIterator[list[RoundRecord]]:
    """The records of the rounds that are made meanwhile; whole when it has ended."""
    records: list[RoundRecord] = []
    channel, decoder, begun = rpc.open_channel(address), Decoder("rounds"), asyncio.Event()

    async def read() -> None:
        async for data in watch_rounds(channel):
            begun.set()
            records.extend(found for found in decoder.feed(data) if isinstance(found, RoundRecord))

    reading = asyncio.create_task(read())
    try:
        await begun.wait()
        yield records
        await asyncio.sleep(_LAST_RECORDS_SECONDS)
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await channel.close()
