"""Yardstick `link-model`: a round over a distance takes what the model says.

One request, set T_V and T_D, 0 to 50 ms of round trip on the two links together. T_S is what a round
takes at no distance with services that cost nothing, so nothing of the judged runs is fitted to them.
Beside it stands what the coordinators measured of their links.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from coordinator.client import AsyncClient
from deploy.bench.fake_cluster import Start, emulated, fronts, link_rtt_seconds
from deploy.bench.fake_service import FakeStackOptions
from deploy.bench.harness import BenchOptions, Measure, Outcome, interleave
from deploy.bench.modelled import SetCosts
from deploy.bench.rounds import counting_request, fixed_rounds, take
from deploy.bench.set_costs import CostTable, DraftCosts, VerifyCosts, uniform

BAR = 0.15
K = 7
DISTANCES_MS = (0.0, 1.0, 5.0, 20.0, 50.0)
VERIFY = VerifyCosts(CostTable((1, 4, 8), (0.020, 0.024, 0.030)))
DRAFT = DraftCosts(((K, CostTable((1, 8), (0.005, 0.006))),))
OVERHEAD = "T_S, ms"


def arm_of(rtt_ms: float) -> str:
    return f"round at {rtt_ms:g} ms, ms"


async def round_ms(client: AsyncClient, num_rounds: int) -> float:
    """A round of a request whose proposals are all accepted."""
    text = await take(client, counting_request("", 1 + num_rounds * (K + 1), fixed_rounds(K)))
    return 1e3 * text.round_seconds


def modelled_ms(rtt_ms: float, overhead_ms: float) -> float:
    """T_V + T_D + T_net + T_S of one request."""
    costs = SetCosts(VERIFY, DRAFT, 0, rtt_ms / 1e3, overhead_ms / 1e3)
    return 1e3 * costs.cycle(1, K + 1).seconds


async def measure(
    options: BenchOptions,
    distances_ms: Sequence[float] = DISTANCES_MS,
    num_rounds: int = 40,
    start: Start = fronts,
) -> Outcome:
    """Runs the yardstick; its value is the worst distance from the model, as a share."""
    num_cycles = 8 if options.full else 4
    async with AsyncExitStack() as entered:
        acceptance = uniform(1.0, K)
        variants = {arm_of(rtt): emulated(rtt) for rtt in distances_ms}
        costly = FakeStackOptions(target_costs=VERIFY, draft_costs=DRAFT, acceptance=acceptance)
        stack, found = await entered.enter_async_context(start(costly, variants, options.say))
        free = FakeStackOptions(acceptance=acceptance)
        _, bare = await entered.enter_async_context(start(free, {OVERHEAD: emulated(0.0)}, options.say))
        clients = {name: front.client for name, front in {**found, **bare}.items()}
        arms: dict[str, Measure] = {
            name: partial(round_ms, client, num_rounds) for name, client in clients.items()
        }
        for warm_up in clients.values():
            await round_ms(warm_up, 4)
        runs = await stack.guard(interleave(arms, num_cycles, options.say))
        for rtt in distances_ms:
            measured = await link_rtt_seconds(found[arm_of(rtt)])
            runs.append({"arm": f"links measured at {rtt:g} ms, ms", "value": measured * 1e3})
    return judge(runs, distances_ms)


def judge(runs: list[dict[str, Any]], distances_ms: Sequence[float]) -> Outcome:
    """Compares medians with the model."""

    def median(arm: str) -> float:
        return statistics.median(float(run["value"]) for run in runs if run["arm"] == arm)

    ratios = {rtt: median(arm_of(rtt)) / modelled_ms(rtt, median(OVERHEAD)) for rtt in distances_ms}
    records = [{"arm": f"measured / modelled at {rtt:g} ms", "value": r} for rtt, r in ratios.items()]
    worst = max(abs(ratio - 1.0) for ratio in ratios.values())
    return Outcome(worst, "worst |measured / modelled - 1|", BAR, worst <= BAR, [*runs, *records])
