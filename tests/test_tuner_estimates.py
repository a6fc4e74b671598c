"""What the tuner learns: costs, links, acceptance and what a confidence is worth."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.tuner.calibration import Calibration
from coordinator.tuner.cost_table import CostTable, Line, bucket_of
from coordinator.tuner.isotonic import non_decreasing
from coordinator.tuner.link_estimate import LinkEstimate
from coordinator.tuner.running import RunningRate, Window
from coordinator.tuner.sources import Offer, Source, pick_source
from coordinator.tuner.survival import Survival, Verified

TRUTH = (0.9, 0.7, 0.8, 0.5, 0.6)


def draw_round(rng: random.Random, num_verified: int, truth: tuple[float, ...] = TRUTH) -> Verified:
    accepted = 0
    while accepted < num_verified and rng.random() < truth[accepted]:
        accepted += 1
    return Verified(num_verified, accepted)


def test_survival_is_uncensored() -> None:
    """v changes every round; each position is judged only by rounds that verified and reached it."""
    rng, survival = random.Random(1), Survival()
    seen = []
    for index in range(6000):
        survival.note(f"r{index % 50}", "chat", draw_round(rng, rng.choice((1, 1, 1, 2, 3, 5))))
        if index >= 1000 and index % 50 == 0:
            seen.append(survival.acceptance("new", "chat", 5))
    means = [sum(found) / len(seen) for found in zip(*seen, strict=True)]
    assert means == pytest.approx(TRUTH, abs=0.04)
    assert seen[-1] == pytest.approx(TRUTH, abs=0.15)


def test_a_cut_block_says_nothing_of_what_follows() -> None:
    assert Verified(5, 2).outcomes() == (True, True, False)
    assert Verified(5, 2, is_cut=True).outcomes() == (True, True)
    assert Verified(3, 3).outcomes() == (True, True, True)


def test_a_request_is_drawn_to_its_class_until_it_has_shown_itself() -> None:
    survival = Survival()
    for _ in range(200):
        survival.note("poor", "chat", Verified(3, 0))
        survival.note("good", "code", Verified(3, 3))
    assert survival.acceptance("fresh", "chat", 1)[0] < 0.1
    assert survival.acceptance("fresh", "code", 1)[0] > 0.9
    for _ in range(30):
        survival.note("fresh", "chat", Verified(3, 3))
    assert survival.acceptance("fresh", "chat", 1)[0] > 0.7
    survival.forget("fresh")
    assert survival.acceptance("fresh", "chat", 1)[0] < survival.acceptance("fresh", "code", 1)[0]


def test_survival_never_rises_along_a_draft() -> None:
    rng, survival = random.Random(2), Survival()
    for _ in range(100):
        survival.note("r", "chat", draw_round(rng, 5))
        for found in (survival.survival("r", "chat", 7), survival.hoped_survival("r", "chat", 7)):
            assert list(found) == sorted(found, reverse=True)
            assert all(0.0 <= value <= 1.0 for value in found)


def test_old_evidence_keeps_its_value_and_loses_its_weight() -> None:
    rate = RunningRate(window=100, half_life=10, floor=2)
    for at in range(100):
        rate.note(False, at)
    heavy = rate.weight(100)
    assert heavy > 10
    assert rate.weight(10_000) == 2
    assert rate.rate == 0.0
    for at in range(10_000, 10_003):
        rate.note(True, at)
    assert rate.rate > 0.5, "three new values outweigh what is old"


def test_a_sudden_change_is_followed() -> None:
    rate = RunningRate(window=100, half_life=1e9, floor=2)
    for at in range(200):
        rate.note(at % 10 < 8, at)
    for at in range(20):
        rate.note(False, 200 + at)
    assert rate.rate < 0.3, "a plain mean over a hundred would still be above 0.6"


def test_confidence_is_calibrated_by_position() -> None:
    """The drafter says .9 whatever happens; at the first position that is true, at the second not."""
    rng, calibration = random.Random(3), Calibration()
    for _ in range(600):
        calibration.note((0.95, 0.95), draw_round(rng, 2, (0.95, 0.4)))
        calibration.note((0.15, 0.15), draw_round(rng, 2, (0.3, 0.1)))
    first, second = calibration.acceptance((0.95, 0.95))
    assert first == pytest.approx(0.95, abs=0.06)
    assert second == pytest.approx(0.4, abs=0.1)
    assert calibration.acceptance((0.15,))[0] == pytest.approx(0.3, abs=0.08)


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=60))
def test_calibration_is_monotone(rounds: list[tuple[float, bool]]) -> None:
    calibration = Calibration()
    for confidence, stands in rounds:
        calibration.note((confidence,), Verified(1, int(stands)))
    found = [calibration.acceptance((value / 20,))[0] for value in range(21)]
    assert found == sorted(found)
    assert 0.0 <= found[0] <= found[-1] <= 1.0


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(0.1, 5)), min_size=1, max_size=12))
def test_isotonic_regression(points: list[tuple[float, float]]) -> None:
    values, weights = [value for value, _ in points], [weight for _, weight in points]
    fitted = non_decreasing(values, weights)
    assert all(low <= high + 1e-9 for low, high in pairwise(fitted))
    mean = sum(map(float.__mul__, values, weights))
    assert sum(map(float.__mul__, fitted, weights)) == pytest.approx(mean, abs=1e-6)
    assert non_decreasing(sorted(values), weights) == sorted(values)


def test_buckets() -> None:
    assert [bucket_of(rows) for rows in (1, 2, 3, 4, 5, 8, 9, 16, 17)] == [0, 1, 2, 2, 3, 3, 4, 4, 5]


def test_a_staircase_of_costs_is_learned() -> None:
    rng, table = random.Random(4), CostTable(Line(0.010, 0.0001))
    for _ in range(600):
        rows = rng.randint(1, 24)
        table.note(rows, (0.02 + 0.02 * (rows > 8)) * rng.gauss(1, 0.05))
    assert table.seconds(8) == pytest.approx(0.02, rel=0.1)
    assert table.seconds(9) == pytest.approx(0.04, rel=0.1)
    assert table.seconds(24) == pytest.approx(0.04, rel=0.1)
    assert table.seconds(0) == 0.0


@given(st.lists(st.tuples(st.integers(1, 40), st.floats(0.001, 1.0), st.floats(0, 4000)), max_size=40))
def test_costs_are_monotone_in_rows_and_context(steps: list[tuple[int, float, float]]) -> None:
    table = CostTable(Line(0.010, 0.001))
    for rows, seconds, context in steps:
        table.note(rows, seconds, context)
    found = [table.seconds(rows, 100.0) for rows in range(1, 60)]
    assert all(low <= high + 1e-12 for low, high in pairwise(found))
    assert table.seconds(5, 200.0) >= table.seconds(5, 100.0)


def test_the_slope_of_context_is_learned_and_one_pause_is_not() -> None:
    rng, table = random.Random(5), CostTable(Line(0.010, 0.0001))
    for _ in range(400):
        rows, context = rng.randint(1, 8), rng.uniform(0, 4000)
        table.note(rows, 0.01 + 1e-6 * context + rng.gauss(0, 1e-4), context)
    assert table.slope == pytest.approx(1e-6, rel=0.1)
    assert table.seconds(4, 2000) == pytest.approx(0.012, rel=0.05)
    table.note(4, 5.0, 2000)
    assert table.seconds(4, 2000) == pytest.approx(0.012, rel=0.1)


def test_what_was_never_measured_is_not_thought_dear() -> None:
    table = CostTable(Line(0.010, 0.0001))
    for _ in range(50):
        table.note(40, 0.5)
    assert table.seconds(40) == pytest.approx(0.5, rel=0.1)
    assert table.seconds(2) < 0.02, "otherwise it would never be tried"


def test_a_link_in_numbers() -> None:
    rng, link = random.Random(6), LinkEstimate()
    for _ in range(256):
        num_bytes = rng.choice((500, 20_000, 100_000))
        link.note(0.020 + num_bytes / 50e6 + rng.uniform(0, 0.002), num_bytes)
    report = link.report()
    assert report.num_samples == 256
    assert report.rtt_p50_seconds == pytest.approx(0.021, abs=0.0008)
    assert report.rtt_p50_seconds <= report.rtt_p90_seconds <= report.rtt_p99_seconds < 0.024
    assert report.bytes_per_second == pytest.approx(50e6, rel=0.15)
    assert 0.0003 < report.jitter_seconds < 0.0015
    assert link.seconds(50_000) == pytest.approx(0.022, abs=0.001)


def test_a_link_without_messages_costs_nothing() -> None:
    link = LinkEstimate()
    assert link.seconds(10_000) == 0.0
    assert link.report().bytes_per_second is None


def test_percentiles_are_of_the_last_values() -> None:
    window = Window(100)
    for value in range(1000):
        window.note(value)
    assert window.percentile(50) == 949
    assert window.percentile(100) == 999
    assert window.percentile(1) == 900


@pytest.mark.parametrize("num_steps", [20, 100])
def test_no_step_is_free(num_steps: int) -> None:
    # Steps whose time context explains wholly, and steps too short to be measured.
    for second_per_token in (1e-6, 0.0):
        table = CostTable(Line(0.010, 0.0001))
        for index in range(num_steps):
            context = 1000 + 37 * (index % 11)
            table.note(4, context * second_per_token, context)
        assert all(table.seconds(rows) > 0.0 for rows in range(1, 33))
        assert table.measured_seconds(4) > 0.0
        costs = tuple(table.seconds(rows) for rows in range(9))
        assert pick_source([Offer(Source.LOOKUP, (0.5, 0.4), 0.0)], costs, 0).tokens_per_second > 0.0
