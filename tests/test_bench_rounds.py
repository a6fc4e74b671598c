"""The yardsticks of rounds, at the size of a test and in one process; and their arithmetic."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from coordinator.client import AsyncClient
from coordinator.config import CoordinatorConfig
from coordinator.startup import start_coordinator
from coordinator.trace.record import RoundParts, RoundRecord, RoundSource, Share, Step
from deploy.bench import (
    coordinator_capacity,
    link_model,
    pipeline,
    replay,
    round_overhead,
    spot_checks,
    spot_model,
    tuner,
)
from deploy.bench.coordinator_capacity import SHAPE
from deploy.bench.fake_cluster import Front, Guard, Variant
from deploy.bench.fake_service import FakeStackOptions
from deploy.bench.fakes import FakeDrafter, FeatureShape, fake_target
from deploy.bench.flood import Flood
from deploy.bench.harness import BenchOptions, Say
from deploy.bench.lean_services import LeanDrafter, LeanTarget
from deploy.bench.modelled import SetCosts, tau
from deploy.bench.rounds import rate_while_all
from deploy.bench.set_costs import CostTable, DraftCosts, VerifyCosts, uniform
from deploy.child import Ready
from draft_service.server import serve as serve_draft
from draft_service.service import DraftService
from draft_service.wire import write_description
from protos import rpc
from protos.codec import encode
from target_service.service import serve as serve_target
from target_service.wire import describe_to

T = TypeVar("T")
# As it is before the fixture makes it quick.
VERIFY = pipeline.VERIFY
OPTIONS = BenchOptions("", False, lambda _: None)


class Here:
    """Services of this process: if one fails the test does."""

    async def guard(self, work: Awaitable[T]) -> T:
        return await work


def _config(target: str, draft: str, variant: Variant) -> CoordinatorConfig:
    names = [flag.removeprefix("--").replace("-", "_") for flag in variant.flags[::2]]
    settings: dict[str, Any] = dict(zip(names, variant.flags[1::2], strict=True))
    for name, value in (variant.environment or {}).items():
        settings[name.removeprefix("DLITE_COORDINATOR_").lower()] = value
    return CoordinatorConfig.load(None, target_address=target, draft_address=draft, **settings)


@contextlib.asynccontextmanager
async def fronts_here(
    options: FakeStackOptions, variants: Mapping[str, Variant], say: Say
) -> AsyncIterator[tuple[Guard, dict[str, Front]]]:
    """As `fronts`, on this event loop."""
    assert options.acceptance is not None
    target = await serve_target(fake_target(options.target_costs, options.shape), "127.0.0.1:0")
    drafter = FakeDrafter(options.draft_costs, options.acceptance, options.shape)
    draft = await serve_draft(DraftService(drafter), "127.0.0.1:0")
    async with contextlib.AsyncExitStack() as entered:
        entered.push_async_callback(target.stop)
        entered.push_async_callback(draft.stop)
        found = {}
        for name, variant in variants.items():
            running = await start_coordinator(_config(target.address, draft.address, variant))
            entered.push_async_callback(running.stop)
            client = await entered.enter_async_context(AsyncClient(running.address))
            found[name] = Front(Ready(running.address, 0, running.admin_address), client)
        yield Here(), found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs of a test: a tenth, and one cycle of arms."""
    tenth = VerifyCosts(CostTable((1, 8), (0.002, 0.003)))
    draft = DraftCosts(((7, CostTable((1, 8), (0.001, 0.001))),))
    for module in (link_model, replay):
        monkeypatch.setattr(module, "VERIFY", tenth)
        monkeypatch.setattr(module, "DRAFT", draft)
    monkeypatch.setattr(pipeline, "VERIFY", VerifyCosts(CostTable((4, 16), (0.002, 0.003))))


def arms_of(outcome: Any) -> set[str]:
    return {run["arm"] for run in outcome.runs}


async def test_link_model_in_small() -> None:
    outcome = await link_model.measure(OPTIONS, (0.0, 4.0), 3, fronts_here)
    values = {run["arm"]: run["value"] for run in outcome.runs}
    assert values["links measured at 4 ms, ms"] >= 4.0
    assert values["links measured at 0 ms, ms"] < values["links measured at 4 ms, ms"]
    assert "measured / modelled at 4 ms" in values
    assert outcome.unit.startswith("worst")


async def test_replay_in_small() -> None:
    outcome = await replay.measure(OPTIONS, (0.0, 1.0), 3, fronts_here)
    assert {"a = 0, v = 4, tokens/s", "measured / modelled, a = 1, v = 8"} <= arms_of(outcome)


async def test_pipeline_in_small() -> None:
    outcome = await pipeline.measure(OPTIONS, 4, fronts_here)
    assert {"cycle of P = 2, ms", "tokens/s of P = 2 over P = 1", "the same, modelled"} <= arms_of(outcome)


async def test_tuner_in_small() -> None:
    recovery = tuner.Cell(0.0, 2, "a0.8", is_recovery=True)
    cells = [tuner.Cell(0.0, 2, "a0.8"), recovery, tuner.Cell(4.0, 1, tuner.SWITCH)]
    outcome = await tuner.measure(OPTIONS, cells, tuner.Size(12, 2, 2), fronts_here)
    assert sum(run["arm"] == "tuned / Run" for run in outcome.runs) == 3
    again = [run for run in outcome.runs if run.get("cell") == str(recovery)]
    assert {run["choice"] for run in again} >= {tuner.RUN, tuner.TUNED}
    assert sum(run["choice"] == tuner.TUNED for run in again) == 2
    assert outcome.passed == (
        outcome.value >= 0.95
        and min(run["value"] for run in outcome.runs if run["arm"] == "tuned / Run") >= 0.97
    )


async def test_round_overhead_in_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_overhead, "JUDGED", FeatureShape(2, 64))
    monkeypatch.setattr(round_overhead, "HALVED", FeatureShape(2, 64, "bf16"))
    monkeypatch.setattr(round_overhead, "_PINGS", 2)
    outcome = await round_overhead.measure(OPTIONS, 2, fronts_here)
    assert arms_of(outcome) == {"round", "round, bf16 features", "bare ping-pong"}


async def test_coordinator_capacity_in_small() -> None:
    """Scripted services behind a coordinator and a flood of clients: every text comes whole."""
    description = fake_target(VerifyCosts(), SHAPE).description
    features = encode(torch.zeros(SHAPE.num_layers, SHAPE.width))
    assert len(features.data) == 16 * 1024
    target = await rpc.start_server(LeanTarget(describe_to(description), features).service(), "127.0.0.1:0")
    drafter = FakeDrafter(DraftCosts(), uniform(1.0, 7), SHAPE)
    lean = LeanDrafter(write_description(drafter.description, 1))
    draft = await rpc.start_server(lean.service(), "127.0.0.1:0")
    running = await start_coordinator(_config(target.address, draft.address, Variant()))
    flood = Flood(running.address, 5, 7)
    await flood.run(4, 0.0)
    assert (flood.num_texts, flood.num_rounds) == (4, 20)
    await running.stop()
    await asyncio.gather(draft.stop(0), target.stop(0))


def test_capacity_tells_rate_and_cost() -> None:
    runs = [
        {"arm": arm, "value": value}
        for rate, cost in ((1900.0, 310.0), (2100.0, 290.0), (2300.0, 300.0))
        for arm, value in ((coordinator_capacity.RATE, rate), (coordinator_capacity.COST, cost))
    ]
    outcome = coordinator_capacity.judge(runs)
    assert (outcome.value, outcome.passed) == (2100.0, True)
    assert outcome.unit == "request-rounds/s; 300 us of coordinator CPU a request-round"


def test_the_model_of_set_costs_is_the_tuners() -> None:
    costs = SetCosts(link_model.VERIFY, link_model.DRAFT, 0, 0.010, 0.002)
    expected = link_model.VERIFY(8, 0) + link_model.DRAFT(1, 7) + 0.010 + 0.002
    assert costs.cycle(1, 8).seconds == pytest.approx(expected)
    assert costs.cycle(1, 1).seconds == pytest.approx(link_model.VERIFY(1, 0)), "a Run pays no distance"
    assert costs.rate(1, 8, (0.5,) * 7) == pytest.approx(tau((0.5,) * 7, 8) / expected)
    assert tau((0.5,) * 7, 3) == pytest.approx(1.75)


def test_the_costs_of_pipeline_make_two_cohorts_the_best_plan() -> None:
    """Else the tuner, which makes the cohorts, would make none."""
    costs, right = SetCosts(VERIFY, pipeline.DRAFT, overhead_seconds=0.004), (1.0,) * pipeline.K
    run = costs.rate(4, 1, right)
    one, two = (costs.rate(4, pipeline.K + 1, right, p) for p in pipeline.NUM_COHORTS)
    assert two > 1.2 * one
    assert one > 1.05 * run
    assert costs.cycle(4, 4, 2).seconds == pytest.approx(0.044)


def test_a_cell_is_judged_by_its_best_fixed_arm() -> None:
    def runs(cell: str, **values: float) -> list[dict[str, Any]]:
        names = {"run": "v = 1", "four": "v = 4", "tuned": "tuned"}
        return [
            {"arm": f"{cell}: {names[arm]}", "value": value, "cell": cell, "choice": names[arm]}
            for arm, value in values.items()
        ]

    good = runs("x", run=100.0, four=200.0, tuned=196.0)
    assert tuner.judge(good).passed
    assert tuner.judge(good).value == pytest.approx(0.98)
    slow_run = tuner.judge([*good, *runs("y", run=100.0, four=50.0, tuned=96.0)])
    assert (slow_run.value, slow_run.passed) == (pytest.approx(0.96), False)
    assert not tuner.judge([*good, *runs("y", run=100.0, four=150.0, tuned=120.0)]).passed


def test_only_the_time_in_which_all_are_served_counts() -> None:
    early = [(0.0, 1), (1.0, 10), (2.0, 10), (9.0, 10)]
    late = [(1.0, 1), (2.0, 4), (3.0, 4)]
    assert rate_while_all([early, late]) == pytest.approx((10 + 8) / 2.0)


def test_run_and_what_is_not_far_behind_take_part_in_the_long_runs() -> None:
    short = {"v = 1": 50.0, "v = 2": 84.0, "v = 4": 86.0, "v = 8": 100.0}
    assert tuner.hopeful(short) == ["v = 1", "v = 4", "v = 8"]


def spot_runs(tuned: float, per_round: float) -> list[dict[str, Any]]:
    values = {"v = 1": 100.0, "v = 2": 90.0, "v = 4": 120.0, "v = 8": 80.0, "tuned": tuned}
    arms = [
        {"arm": f"1 requests: {arm}", "value": value, "cell": "1 requests", "choice": arm}
        for arm, value in values.items()
    ]
    model = [
        {"arm": "measured / modelled round", "value": per_round, "of": "v = 4"},
        {"arm": "measured / modelled tokens/s", "value": 0.95, "of": "v = 4"},
    ]
    return [*arms, *model]


def test_a_spot_check_is_judged_by_the_tuner_and_by_the_model() -> None:
    assert spot_checks.judge(spot_runs(118.0, 1.1)).passed
    assert spot_checks.judge(spot_runs(118.0, 1.1)).value == pytest.approx(118 / 120)
    assert not spot_checks.judge(spot_runs(110.0, 1.1)).passed
    assert not spot_checks.judge(spot_runs(118.0, 1.2)).passed


def test_a_round_is_modelled_from_what_records_say_of_steps_and_ways() -> None:
    records = [
        RoundRecord(
            *(0.0, "r", "text-greedy/drafter", RoundSource.DRAFTER, 1, v - 1, v - 1, v - 1, v),
            *(False, 0, 100, 0, 1),
            RoundParts(0.004, 0.010 * v, 0.001, 0.002, 0.0005, 0.0005),
            Step(v, 0.010 * v, 100, n),
            Step(1, 0.004, v - 1, n),
            Share(),
        )
        for n, v in enumerate([2, 4, 8] * 40, 1)
    ]
    for v in (2, 4, 8):
        expected = 0.010 * v + 0.004 + 0.003 + 0.001
        assert spot_model.modelled_seconds(records, v) == pytest.approx(expected, rel=0.02)


def test_the_last_round_of_a_text_is_no_whole_one() -> None:
    arrivals = [(1.0, 1), (2.0, 4), (3.0, 2), (3.9, 1)]
    assert spot_model.rate_of_whole_rounds(arrivals) == pytest.approx(6 / 2.0)


@pytest.mark.prove
async def test_spot_checks_in_small() -> None:
    """Real processes, a tiny model: both checks come to a result, and every round was drafted."""
    target = Path(__file__).parent / "golden" / "target_qwen3"
    prompts = [tuple(range(3, 9 + i)) for i in range(4)]
    options = BenchOptions(str(target), False, lambda _: None)
    outcome = await spot_checks.measure(options, 12, 2, prompt_ids=prompts)
    assert {run.get("of") for run in outcome.runs} >= {"1 requests", "4 requests", "v = 2", "v = 8"}
    undrafted = [run["value"] for run in outcome.runs if run["arm"].endswith("without a draft")]
    assert undrafted == [0] * 20


def test_the_grid_of_the_tuner() -> None:
    cells = tuner.grid(tuner.DISTANCES_MS, tuner.CONCURRENCIES, tuner.ACCEPTANCES)
    assert {cell.concurrency for cell in cells} == {1, 2, 4, 8, 16}
    assert {cell.traffic for cell in cells} == {"a0.8", "a0.5", "a0", tuner.SWITCH}
    after = [before for before, cell in itertools.pairwise(cells) if cell.is_recovery]
    assert {cell.concurrency for cell in after} == {16}
    switch = tuner.acceptance_of(tuner.ACCEPTANCES, 64)
    assert switch.at("switch/1", 10)[0] == 0.8
    assert switch.at("switch/1", 60)[0] == 0.0
