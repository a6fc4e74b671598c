"""How many drafters there should be: never out of bounds, more under load, no to and fro (CLUSTER, Ray)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.cluster.autoscale import AutoscaleSpec, Sample, wanted_drafters

SPEC = AutoscaleSpec(min=1, max=8, outstanding=4.0, busy=0.8, window_seconds=5.0, interval_seconds=1.0)


def steady(*outstanding: int) -> list[Sample]:
    return [Sample(outstanding)] * SPEC.num_samples


@pytest.mark.parametrize(
    ("samples", "num_now", "wanted"),
    [
        (steady(4, 4), 2, 2),  # as much as they may have
        (steady(5, 4), 2, 3),  # a little more: one more
        (steady(20, 20), 2, 8),  # by load, not one by one, and no more than there may be
        (steady(1, 1), 2, 2),  # little, but busy
        (steady(0, 0), 2, 1),  # idle
        (steady(0), 1, 1),  # never none
        (steady(9, 9)[1:], 2, 2),  # not yet a whole window
        ([], 0, 1),  # there must be one
        ([], 9, 8),
    ],
)
def test_decisions(samples: list[Sample], num_now: int, wanted: int) -> None:
    assert wanted_drafters(samples, SPEC, num_now) == wanted


def test_a_burst_between_pauses_calls_for_nothing() -> None:
    """Many at once now and then: the mean is high, but they idle most of the time."""
    burst = [Sample((30, 30)), *[Sample((0, 0))] * (SPEC.num_samples - 1)]
    assert wanted_drafters(burst, SPEC, 2) == 2


def test_only_the_last_window_counts() -> None:
    assert wanted_drafters([*steady(50, 50), *steady(1, 1)], SPEC, 2) == 2


@given(st.integers(1, 8), st.integers(0, 200))
def test_a_decision_is_not_taken_back_under_the_same_load(num_now: int, load: int) -> None:
    """Whatever the load, one more decision at it changes nothing in the other direction."""

    def spread(count: int) -> list[Sample]:
        return steady(*(load // count + (index < load % count) for index in range(count)))

    first = wanted_drafters(spread(num_now), SPEC, num_now)
    assert SPEC.min <= first <= SPEC.max
    second = wanted_drafters(spread(first), SPEC, first)
    assert (first - num_now) * (second - first) >= 0
    if first > num_now:
        assert second == first
        assert first == min(math.ceil(load / SPEC.outstanding), SPEC.max)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=8), st.integers(1, 40))
def test_more_load_never_calls_for_fewer(loads: list[int], more: int) -> None:
    wanted = wanted_drafters(steady(*loads), SPEC, len(loads))
    assert wanted_drafters(steady(*(load + more for load in loads)), SPEC, len(loads)) >= wanted
