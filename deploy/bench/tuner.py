"""Yardstick `tuner`: tokens/s of the tuner against the best fixed v, v = 1 being `Run`.

Set T_V (a staircase) and T_D, concurrency 1 to 16, no distance and 20 ms, acceptance 0, .5 and .8, and
one that falls from .8 to 0 in the middle of every text. A fixed v is a fixed choice of the same
coordinator; the tuner keeps what it learned from cell to cell, so every cell begins with beliefs from
another one, and load falls from 16 to 1 between two acceptances (`recovery`).
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from coordinator.client import AsyncClient
from deploy.bench.fake_cluster import Start, emulated, fronts
from deploy.bench.fake_service import FakeStackOptions
from deploy.bench.harness import BenchOptions, Outcome
from deploy.bench.rounds import (
    PROMPT_LENGTH,
    counting_request,
    fixed_rounds,
    plain_rounds,
    take_together,
    tuned_rounds,
)
from deploy.bench.set_costs import Acceptance, CostTable, DraftCosts, Phase, VerifyCosts
from protos import coordinator_pb2

BAR, RUN_BAR = 0.95, 0.97
K = 7
CONCURRENCIES = (1, 2, 4, 8, 16)
DISTANCES_MS = (0.0, 20.0)
ACCEPTANCES = (0.8, 0.5, 0.0)
SWITCH = "switch"
# Fixed arms; 1 is `Run`.
SIZES = (1, 2, 4, 8)
VERIFY = VerifyCosts(CostTable((1, 8, 16, 32, 64, 128), (0.0101, 0.0108, 0.0156, 0.0252, 0.0444, 0.0828)))
DRAFT = DraftCosts(
    (
        (1, CostTable((1, 4, 16), (0.0025, 0.0031, 0.0055))),
        (3, CostTable((1, 4, 16), (0.0031, 0.0037, 0.0061))),
        (K, CostTable((1, 4, 16), (0.0043, 0.0049, 0.0073))),
    )
)
TUNED = "tuned"


@dataclass(frozen=True)
class Cell:
    """One point of the grid; `traffic` names what the drafter knows."""

    rtt_ms: float
    concurrency: int
    traffic: str
    is_recovery: bool = False

    def __str__(self) -> str:
        after = ", after 16" if self.is_recovery else ""
        return f"RTT {self.rtt_ms:g} ms, {self.traffic}, {self.concurrency} requests{after}"


def traffic_of(acceptance: float) -> str:
    return f"a{acceptance:g}"


def grid(
    distances_ms: Sequence[float], concurrencies: Sequence[int], acceptances: Sequence[float]
) -> list[Cell]:
    """The cells in their order: load rises, then falls at once to one request."""
    cells = []
    for rtt in distances_ms:
        for traffic in (*map(traffic_of, acceptances), SWITCH):
            cells += [Cell(rtt, concurrency, traffic) for concurrency in concurrencies]
            cells.append(Cell(rtt, concurrencies[0], traffic, is_recovery=True))
    return cells


def acceptance_of(acceptances: Sequence[float], num_tokens: int) -> Acceptance:
    """A class for each, and one that changes in the middle of a text of so many tokens."""
    right, wrong = (0.8,) * K, (0.0,) * K
    steady = {traffic_of(a): (Phase(0, (a,) * K),) for a in acceptances}
    middle = Phase(PROMPT_LENGTH + num_tokens // 2, wrong)
    return Acceptance({"": (Phase(0, right),), **steady, SWITCH: (Phase(0, right), middle)})


def speculation_of(arm: str) -> coordinator_pb2.Speculation:
    if arm == TUNED:
        return tuned_rounds()
    v = int(arm.removeprefix("v = "))
    return plain_rounds() if v == 1 else fixed_rounds(v - 1, v)


async def rate(client: AsyncClient, cell: Cell, arm: str, num_tokens: int, numbers: Iterator[int]) -> float:
    """Tokens/s of the cell's texts, all at once."""
    requests = [
        counting_request(f"{cell.traffic}/{next(numbers)}", num_tokens, speculation_of(arm))
        for _ in range(cell.concurrency)
    ]
    return (await take_together(client, requests)).tokens_per_second


async def measure(
    options: BenchOptions,
    cells: Sequence[Cell] | None = None,
    num_tokens: int = 64,
    start: Start = fronts,
) -> Outcome:
    """Runs the yardstick; its value is the worst ratio to the best fixed v."""
    cells = cells or grid(DISTANCES_MS, CONCURRENCIES, ACCEPTANCES)
    num_tokens = 4 * num_tokens if options.full else num_tokens
    numbers, runs = itertools.count(), list[dict[str, Any]]()
    distances = sorted({cell.rtt_ms for cell in cells})
    async with AsyncExitStack() as entered:
        costly = FakeStackOptions(
            target_costs=VERIFY, draft_costs=DRAFT, acceptance=acceptance_of(ACCEPTANCES, num_tokens)
        )
        variants = {f"{rtt:g}": emulated(rtt) for rtt in distances}
        stack, found = await entered.enter_async_context(start(costly, variants, options.say))
        for cell in cells:
            client = found[f"{cell.rtt_ms:g}"].client
            arms = [*(f"v = {v}" for v in SIZES), TUNED]
            # Forwards and backwards; the tuner's first run of a cell is the one that learns it.
            for arm in [*arms, *reversed(arms[-1:])] if not options.full else [*arms, *reversed(arms)]:
                value = await stack.guard(rate(client, cell, arm, num_tokens, numbers))
                runs.append({"arm": f"{cell}: {arm}", "value": value, "cell": str(cell), "choice": arm})
            options.say(_line(cell, runs))
    return judge(runs)


def _values(runs: Sequence[dict[str, Any]], cell: str) -> dict[str, float]:
    """Mean tokens/s by arm; the tuner's learning is in its mean."""
    found: dict[str, list[float]] = {}
    for run in runs:
        if run.get("cell") == cell:
            found.setdefault(run["choice"], []).append(run["value"])
    return {arm: statistics.harmonic_mean(values) for arm, values in found.items()}


def _line(cell: Cell, runs: Sequence[dict[str, Any]]) -> str:
    values = _values(runs, str(cell))
    return f"{cell}: " + ", ".join(f"{arm} {value:.0f}" for arm, value in values.items())


def judge(runs: list[dict[str, Any]]) -> Outcome:
    """Every cell against its best fixed arm and against `Run`."""
    records: list[dict[str, Any]] = []
    for cell in dict.fromkeys(run["cell"] for run in runs):
        values = _values(runs, cell)
        tuned = values.pop(TUNED)
        records += [
            {"arm": "tuned / best fixed", "value": tuned / max(values.values()), "of": cell},
            {"arm": "tuned / Run", "value": tuned / values["v = 1"], "of": cell},
        ]
    over_best = min(r["value"] for r in records if r["arm"] == "tuned / best fixed")
    over_run = min(r["value"] for r in records if r["arm"] == "tuned / Run")
    passed = over_best >= BAR and over_run >= RUN_BAR
    return Outcome(over_best, "worst of tuned / best fixed v", BAR, passed, [*runs, *records])
