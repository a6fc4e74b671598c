"""Yardstick `pipeline`: two cohorts hide one another's time as the model says.

Four requests, all of whose proposals are right; T_D grows with the batch, T_V hardly with rows, so
that two cohorts of two take turns in less time than one of four needs. The tuner makes the cohorts;
the arms differ in how many it may make. T_S is the round of a cohort whose services cost nothing.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

from coordinator.client import AsyncClient
from deploy.bench.fake_cluster import Start, Variant, fronts
from deploy.bench.fake_service import FakeStackOptions
from deploy.bench.harness import BenchOptions, Outcome, abba
from deploy.bench.modelled import SetCosts
from deploy.bench.rounds import Batch, counting_request, fixed_rounds, take_together, tuned_rounds
from deploy.bench.set_costs import CostTable, DraftCosts, VerifyCosts, uniform
from protos import coordinator_pb2

BAR = 1.15
K = 3
NUM_REQUESTS = 4
# `Run` makes 222 tokens/s, one cohort 250, two 400 (T_S left out): so the tuner drafts, and pipelines.
VERIFY = VerifyCosts(CostTable((4, 8, 16), (0.018, 0.020, 0.024)))
DRAFT = DraftCosts(((K, CostTable((1, 2, 3, 4), (0.010, 0.020, 0.030, 0.040))),))
NUM_COHORTS = (1, 2)
OVERHEAD = "T_S, ms"


async def run_of(
    client: AsyncClient,
    numbers: Iterator[int],
    num_requests: int,
    num_rounds: int,
    speculation: coordinator_pb2.Speculation,
) -> Batch:
    """So many texts at once, of so many rounds each."""
    return await take_together(
        client,
        [
            counting_request(f"pipeline/{next(numbers)}", 1 + num_rounds * (K + 1), speculation)
            for _ in range(num_requests)
        ],
    )


async def measure(options: BenchOptions, num_rounds: int = 40, start: Start = fronts) -> Outcome:
    """Runs the yardstick; its value is measured over modelled time of a cycle of two cohorts."""
    num_cycles, numbers = (8 if options.full else 4), itertools.count()
    runs: list[dict[str, Any]] = []
    variants = {
        f"P = {p}": Variant(environment={"DLITE_COORDINATOR_MAX_COHORTS": str(p)}) for p in NUM_COHORTS
    }
    async with AsyncExitStack() as entered:
        acceptance = uniform(1.0, K)
        costly = FakeStackOptions(target_costs=VERIFY, draft_costs=DRAFT, acceptance=acceptance)
        stack, found = await entered.enter_async_context(start(costly, variants, options.say))
        free = FakeStackOptions(acceptance=acceptance)
        _, bare = await entered.enter_async_context(start(free, {OVERHEAD: Variant()}, options.say))
        for front in found.values():  # the tuners learn
            await run_of(front.client, numbers, NUM_REQUESTS, num_rounds, tuned_rounds())
        for name in abba([*found, OVERHEAD], num_cycles):
            if name == OVERHEAD:
                size = NUM_REQUESTS // NUM_COHORTS[-1]
                work = run_of(bare[name].client, numbers, size, num_rounds, fixed_rounds(K))
            else:
                work = run_of(found[name].client, numbers, NUM_REQUESTS, num_rounds, tuned_rounds())
            batch = await stack.guard(work)
            options.say(f"{name}: {batch.round_seconds * 1e3:.2f} ms, {batch.tokens_per_second:.0f} tokens/s")
            runs += _records(name, batch)
    return judge(runs)


def _records(name: str, batch: Batch) -> list[dict[str, Any]]:
    if name == OVERHEAD:
        return [{"arm": OVERHEAD, "value": batch.round_seconds * 1e3}]
    return [
        {"arm": f"cycle of {name}, ms", "value": batch.round_seconds * 1e3},
        {"arm": f"tokens/s of {name}", "value": batch.tokens_per_second},
        {"arm": f"tokens a round of {name}", "value": batch.tokens_per_round},
    ]


def judge(runs: list[dict[str, Any]]) -> Outcome:
    """Compares medians with the model."""

    def median(arm: str) -> float:
        return statistics.median(float(run["value"]) for run in runs if run["arm"] == arm)

    costs = SetCosts(VERIFY, DRAFT, overhead_seconds=median(OVERHEAD) / 1e3)
    modelled = {p: costs.cycle(NUM_REQUESTS, K + 1, p).seconds * 1e3 for p in NUM_COHORTS}
    one, two = NUM_COHORTS
    records = [{"arm": f"modelled cycle of P = {p}, ms", "value": seconds} for p, seconds in modelled.items()]
    gain = median(f"tokens/s of P = {two}") / median(f"tokens/s of P = {one}")
    records += [
        {"arm": "tokens/s of P = 2 over P = 1", "value": gain},
        {"arm": "the same, modelled", "value": modelled[one] / modelled[two]},
    ]
    value = median(f"cycle of P = {two}, ms") / modelled[two]
    return Outcome(value, "cycle time / T_cycle, P = 2", BAR, value <= BAR, [*runs, *records])
