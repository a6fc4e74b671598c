"""The tuner over simulated rounds: against the best fixed v, after a switch, and after load falls."""

from __future__ import annotations

from statistics import median

import pytest

from coordinator.tuner.kinds import CycleKind
from tests.tuner_world import K, Phase, Simulation, World, draft_seconds, staircase

TOGETHER = CycleKind(is_mixed=False, is_overlapped=False)
BAR = 0.95
FLOOR = 0.95


def world(rtt_seconds: float) -> World:
    return World(staircase, draft_seconds, rtt_seconds)


def tokens_of(num_requests: int, each: int) -> int:
    return each * max(num_requests // 2, 1)


def compare(rtt_seconds: float, acceptances: tuple[float, ...], num_requests: int) -> tuple[float, float]:
    """The tuner's tokens per second over those of the best fixed v of the whole run, and over `Run`."""
    simulation = Simulation(world(rtt_seconds))
    phases = [
        simulation.run(Phase(num_requests, acceptance, tokens_of(num_requests, 3000)))
        for acceptance in acceptances
    ]
    seconds = sum(phase.seconds for phase in phases)
    fixed = [
        sum(
            phase.num_tokens / simulation.world.fixed_rate(size, num_requests, acceptance)
            for phase, acceptance in zip(phases, acceptances, strict=True)
        )
        for size in range(1, K + 2)
    ]
    return min(fixed) / seconds, fixed[0] / seconds


@pytest.mark.prove
@pytest.mark.parametrize("rtt_seconds", [0.0, 0.020])
@pytest.mark.parametrize("acceptances", [(0.0,), (0.5,), (0.8,), (0.8, 0.0), (0.0, 0.8)])
@pytest.mark.parametrize("num_requests", [1, 2, 4, 8, 16])
def test_as_fast_as_the_best_fixed_size(
    rtt_seconds: float, acceptances: tuple[float, ...], num_requests: int
) -> None:
    """Learning included; the best fixed v is free to take the best P for each stretch."""
    over_fixed, over_run = compare(rtt_seconds, acceptances, num_requests)
    assert over_fixed >= BAR
    assert over_run >= FLOOR


@pytest.mark.parametrize(
    ("rtt_seconds", "acceptances", "num_requests"),
    [(0.0, (0.8,), 1), (0.020, (0.0,), 1), (0.0, (0.5,), 4), (0.020, (0.8,), 2), (0.0, (0.8, 0.0), 2)],
)
def test_a_few_of_the_grid(rtt_seconds: float, acceptances: tuple[float, ...], num_requests: int) -> None:
    over_fixed, over_run = compare(rtt_seconds, acceptances, num_requests)
    assert over_fixed >= BAR
    assert over_run >= FLOOR


def wide_step(rows: int) -> float:
    """Eight rows cost what one costs; sixteen requests are beyond any step that speculation likes."""
    return 0.010 if rows <= 8 else 0.010 + 0.003 * (rows - 8)


def test_recovers_after_load_falls() -> None:
    """Load 1, 16, 1: speculation is left at the high load and comes back at the low one."""
    simulation = Simulation(World(wide_step, draft_seconds))
    before = simulation.run(Phase(1, 0.8, 1500))
    loaded = simulation.run(Phase(16, 0.8, 8000))
    after = simulation.run(Phase(1, 0.8, 1500))
    assert median(before.last.plan.block_sizes) >= 6
    assert median(loaded.last.plan.block_sizes) == 1
    assert median(after.last.plan.block_sizes) >= 6
    best = max(simulation.world.fixed_rate(size, 1, 0.8) for size in range(1, K + 2))
    assert after.rate >= BAR * best


def test_off_is_left_when_acceptance_comes_back() -> None:
    simulation = Simulation(world(0.0))
    off = simulation.run(Phase(2, 0.0, 2000))
    assert off.last.plan.block_sizes == (1, 1)
    simulation.run(Phase(2, 0.8, 2000))
    on = simulation.run(Phase(2, 0.8, 1000))
    best = max(simulation.world.fixed_rate(size, 2, 0.8) for size in range(1, K + 2))
    assert on.rate >= BAR * best


def test_acceptance_and_costs_come_near_the_truth() -> None:
    simulation = Simulation(world(0.0))
    simulation.run(Phase(2, 0.8, 6000))
    assert simulation.tuner.survival.acceptance("r0", "chat", 3) == pytest.approx((0.8,) * 3, abs=0.12)
    for rows in simulation.tuner.costs.verify.cells(least_count=20):
        assert simulation.tuner.costs.verify.seconds(rows) == pytest.approx(staircase(rows), rel=0.1)
    assert simulation.tuner.costs.overheads.seconds(TOGETHER) == pytest.approx(0.001, abs=0.001)


def test_explain_shows_prediction_choice_and_measurement() -> None:
    simulation = Simulation(world(0.0))
    assert simulation.tuner.explain() is None
    simulation.run(Phase(1, 0.8, 1000))
    explanation = simulation.tuner.explain()
    assert explanation is not None
    assert [row.block_size for row in explanation.sizes] == list(range(1, K + 2))
    measured = [row for row in explanation.sizes if row.measured is not None]
    assert measured
    lines = explanation.lines()
    assert lines[0].startswith("1 requests; acceptance 0.")
    assert sum(line.startswith(">") for line in lines) == 1
    assert lines[-1].startswith("chosen: mean v ")


def test_the_same_draws_give_the_same_decisions() -> None:
    first = Simulation(world(0.020), seed=7).run(Phase(4, 0.5, 2000))
    second = Simulation(world(0.020), seed=7).run(Phase(4, 0.5, 2000))
    assert first.last.block_sizes == second.last.block_sizes
    assert first.seconds == second.seconds
