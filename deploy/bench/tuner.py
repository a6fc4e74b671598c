"""Yardstick `tuner`: tokens/s of the tuner against the best fixed v, v = 1 being `Run`.

Set T_V (a staircase) and T_D, concurrency 1 to 16, no distance and 20 ms, acceptance 0, .5 and .8, and
one that falls from .8 to 0 in the middle of every text. A fixed v is a fixed choice of the same
coordinator; the tuner keeps what it learned from cell to cell, so every cell begins with beliefs from
another one, what it learns anew is in its runs, and load falls from 16 to 1 between two acceptances
(`recovery`).

Every arm of a cell has the same texts, which the drafter knows or does not at the same positions: luck
is no arm's. Sizes that are far behind in a short run take no part in the long ones. These are interleaved
A-B-B-A, and their rate is that of the time in which all requests are under way (`steady_rate`).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

from coordinator.client import AsyncClient
from deploy.bench.fake_cluster import Start, emulated, fronts
from deploy.bench.fake_service import FakeStackOptions
from deploy.bench.harness import BenchOptions, Outcome, abba, spread
from deploy.bench.rounds import (
    PROMPT_LENGTH,
    counting_request,
    fixed_rounds,
    plain_rounds,
    steady_rate,
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
TUNED, RUN = "tuned", "v = 1"
# A size that reaches less than this share of the best one in the short runs is not tried longer.
HOPEFUL = 0.85
_SHORT_SHARE = 4


@dataclass(frozen=True)
class Size:
    """How much is run: texts of so many tokens, one after the other; so often."""

    num_tokens: int = 96
    num_texts: int = 2
    num_cycles: int = 2

    @property
    def short(self) -> Size:
        """Of the runs that tell which sizes have a chance."""
        return Size(max(self.num_tokens // _SHORT_SHARE, 2), 1, 1)


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


async def rate(client: AsyncClient, cell: Cell, arm: str, size: Size) -> float:
    """Tokens/s of the cell's texts. Their names, and so what the drafter knows, are those of every arm."""
    speculation = speculation_of(arm)
    users = [
        [
            counting_request(f"{cell.traffic}/{user}-{turn}", size.num_tokens, speculation)
            for turn in range(size.num_texts)
        ]
        for user in range(cell.concurrency)
    ]
    return await steady_rate(client, users)


async def measure(
    options: BenchOptions,
    cells: Sequence[Cell] | None = None,
    size: Size | None = None,
    start: Start = fronts,
) -> Outcome:
    """Runs the yardstick; its value is the worst ratio to the best fixed v."""
    cells = cells or grid(DISTANCES_MS, CONCURRENCIES, ACCEPTANCES)
    size = size or (Size(256, 2, 4) if options.full else Size())
    runs: list[dict[str, Any]] = []
    distances = sorted({cell.rtt_ms for cell in cells})
    async with AsyncExitStack() as entered:
        costly = FakeStackOptions(
            target_costs=VERIFY, draft_costs=DRAFT, acceptance=acceptance_of(ACCEPTANCES, size.num_tokens)
        )
        variants = {f"{rtt:g}": emulated(rtt) for rtt in distances}
        stack, found = await entered.enter_async_context(start(costly, variants, options.say))
        for cell in cells:
            work = _cell_runs(found[f"{cell.rtt_ms:g}"].client, cell, size, runs)
            runs += await stack.guard(work)
            options.say(_line(cell, runs))
    return judge(runs)


async def _cell_runs(
    client: AsyncClient, cell: Cell, size: Size, before: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """All runs of a cell. What fixed sizes reach does not depend on what was before: a cell of recovery
    has those of the cell that it is like."""
    like = str(replace(cell, is_recovery=False))
    known = [run for run in before if run.get("cell") == like and run["choice"] != TUNED]
    runs = [{**run, "arm": f"{cell}: {run['choice']}", "cell": str(cell)} for run in known]
    arms = [TUNED]
    if not known:
        short = {f"v = {v}": await rate(client, cell, f"v = {v}", size.short) for v in SIZES}
        runs += [{"arm": f"{cell}: {arm}, short run", "value": value} for arm, value in short.items()]
        arms = [*hopeful(short), TUNED]
    for arm in abba(arms, size.num_cycles):
        value = await rate(client, cell, arm, size)
        runs.append({"arm": f"{cell}: {arm}", "value": value, "cell": str(cell), "choice": arm})
    return runs


def hopeful(short: Mapping[str, float]) -> list[str]:
    """`Run`, and the sizes that are not far behind the best."""
    best = max(short.values())
    return [arm for arm, value in short.items() if arm == RUN or value >= HOPEFUL * best]


def _values(runs: Sequence[Mapping[str, Any]], cell: str) -> dict[str, float]:
    """Tokens/s by arm, over all of its runs; the tuner's learning is in it."""
    found: dict[str, list[float]] = {}
    for run in runs:
        if run.get("cell") == cell:
            found.setdefault(run["choice"], []).append(run["value"])
    return {arm: statistics.harmonic_mean(values) for arm, values in found.items()}


def _line(cell: Cell, runs: Sequence[Mapping[str, Any]]) -> str:
    values = _values(runs, str(cell))
    return f"{cell}: " + ", ".join(f"{arm} {value:.0f}" for arm, value in values.items())


def judge(runs: list[dict[str, Any]]) -> Outcome:
    """Every cell against its best fixed arm and against `Run`."""
    records: list[dict[str, Any]] = []
    for cell in dict.fromkeys(run["cell"] for run in runs if "cell" in run):
        values = _values(runs, cell)
        tuned = values.pop(TUNED)
        records += [
            {"arm": "tuned / best fixed", "value": tuned / max(values.values()), "of": cell},
            {"arm": "tuned / Run", "value": tuned / values[RUN], "of": cell},
        ]
    over_best = spread([r["value"] for r in records if r["arm"] == "tuned / best fixed"])
    over_run = spread([r["value"] for r in records if r["arm"] == "tuned / Run"])
    passed = over_best.low >= BAR and over_run.low >= RUN_BAR
    return Outcome(over_best.low, "worst of tuned / best fixed v", BAR, passed, [*runs, *records])
