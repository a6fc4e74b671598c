"""Yardstick `replay`: tokens/s at a set acceptance are what `tau / T_cycle` of the model says.

One request, fixed k and v, set T_V and T_D; T_S as in `link-model`. What the drafter knows of a text
is drawn anew for each run, so that medians of runs are near what is expected.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from coordinator.client import AsyncClient
from deploy.bench.fake_cluster import Start, emulated, fronts
from deploy.bench.fake_service import FakeStackOptions
from deploy.bench.harness import BenchOptions, Measure, Outcome, interleave
from deploy.bench.link_model import DRAFT, OVERHEAD, VERIFY, round_ms
from deploy.bench.modelled import SetCosts, tau
from deploy.bench.rounds import counting_request, fixed_rounds, take
from deploy.bench.set_costs import Acceptance, Phase

BAR = 0.10
K = 7
ACCEPTANCES = (0.0, 0.5, 0.8, 1.0)
SIZES = (4, 8)


def arm_of(acceptance: float, v: int) -> str:
    return f"a = {acceptance:g}, v = {v}, tokens/s"


def classes(acceptances: Sequence[float]) -> Acceptance:
    """One class of traffic for each."""
    phases = {f"a{a:g}": (Phase(0, (a,) * K),) for a in acceptances}
    return Acceptance({"": (Phase(0, (1.0,) * K),), **phases})


async def tokens_per_second(
    client: AsyncClient, acceptance: float, v: int, num_rounds: int, numbers: Iterator[int]
) -> float:
    """Of one text of about so many rounds, from its first token on."""
    num_tokens = 1 + round(num_rounds * tau((acceptance,) * K, v))
    name = f"a{acceptance:g}/{next(numbers)}"
    text = await take(client, counting_request(name, num_tokens, fixed_rounds(v - 1, v)))
    return (text.num_tokens - 1) / (text.last_seconds - text.first_seconds)


async def measure(
    options: BenchOptions,
    acceptances: Sequence[float] = ACCEPTANCES,
    num_rounds: int = 60,
    start: Start = fronts,
) -> Outcome:
    """Runs the yardstick; its value is the worst distance from the model, as a share."""
    num_cycles, numbers = (12 if options.full else 6), itertools.count()
    async with AsyncExitStack() as entered:
        costly = FakeStackOptions(target_costs=VERIFY, draft_costs=DRAFT, acceptance=classes(acceptances))
        stack, found = await entered.enter_async_context(start(costly, {"": emulated(0.0)}, options.say))
        free = FakeStackOptions(acceptance=classes(acceptances))
        _, bare = await entered.enter_async_context(start(free, {"": emulated(0.0)}, options.say))
        arms: dict[str, Measure] = {
            arm_of(a, v): partial(tokens_per_second, found[""].client, a, v, num_rounds, numbers)
            for a in acceptances
            for v in SIZES
        }
        arms[OVERHEAD] = partial(round_ms, bare[""].client, num_rounds)
        await round_ms(bare[""].client, 4)
        runs = await stack.guard(interleave(arms, num_cycles, options.say))
    return judge(runs, acceptances)


def judge(runs: list[dict[str, Any]], acceptances: Sequence[float]) -> Outcome:
    """Compares means of rates with the model (a median of few texts is biased where tau is skew)."""

    def values(arm: str) -> list[float]:
        return [run["value"] for run in runs if run["arm"] == arm]

    costs = SetCosts(VERIFY, DRAFT, overhead_seconds=statistics.median(values(OVERHEAD)) / 1e3)
    records: list[dict[str, Any]] = [
        {
            "arm": f"measured / modelled, {arm_of(a, v).removesuffix(', tokens/s')}",
            "value": statistics.fmean(values(arm_of(a, v))) / costs.rate(1, v, (a,) * K),
        }
        for a in acceptances
        for v in SIZES
    ]
    worst = max(abs(record["value"] - 1.0) for record in records)
    return Outcome(worst, "worst |measured / modelled - 1|", BAR, worst <= BAR, [*runs, *records])
