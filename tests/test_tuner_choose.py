"""The best v and P against brute force, and on cost curves that fool the impatient."""

from __future__ import annotations

from itertools import accumulate, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.tuner.choose import Choice, choose, evaluate, shape_of
from coordinator.tuner.cycle import CycleCosts, Shape, cycle_of
from coordinator.tuner.survival import survival_of

Survivals = list[tuple[float, ...]]
STEP = st.floats(0.0, 2.0)


def flat_draft(num_requests: int, k: int, seconds: float) -> tuple[tuple[float, ...], ...]:
    return tuple(
        tuple(seconds if batch and n else 0.0 for n in range(k + 1)) for batch in range(num_requests + 1)
    )


def brute_force(survivals: Survivals, costs: CycleCosts) -> float:
    """Every v of every request with every P: the slow twin of `choose`."""
    sizes = [range(1, len(survival) + 2) for survival in survivals]
    return max(
        evaluate(chosen, number, survivals, costs)
        for chosen in product(*sizes)
        for number in range(1, max(min(3, sum(size > 1 for size in chosen)), 1) + 1)
    )


@st.composite
def cases(draw: st.DrawFn, fewest: int = 1, most: int = 3) -> tuple[Survivals, CycleCosts]:
    num_requests, k = draw(st.integers(fewest, most)), draw(st.integers(1, 3))
    acceptance = st.lists(st.floats(0.0, 1.0), min_size=0, max_size=k)
    survivals = [survival_of(tuple(draw(acceptance))) for _ in range(num_requests)]
    rows = num_requests * (k + 1)
    verify = list(accumulate(draw(st.lists(STEP, min_size=rows, max_size=rows)), initial=0.0))
    drafts = [[0.0, *accumulate(draw(st.lists(STEP, min_size=k, max_size=k)))] for _ in range(num_requests)]
    by_batch = [[max(column[: i + 1]) for column in zip(*drafts, strict=True)] for i in range(len(drafts))]
    costs = CycleCosts(
        (0.0, *(value + 0.01 for value in verify[1:])),
        ((0.0,) * (k + 1), *(tuple(row) for row in by_batch)),
        draw(STEP),
        draw(st.floats(0.0, 0.1)),
    )
    return survivals, costs


@settings(max_examples=150, deadline=None)
@given(cases())
def test_equals_brute_force(case: tuple[Survivals, CycleCosts]) -> None:
    survivals, costs = case
    best = choose(survivals, costs)
    assert best.tokens_per_second == pytest.approx(brute_force(survivals, costs), rel=1e-9)
    predicted = evaluate(best.block_sizes, best.num_cohorts, survivals, costs)
    assert best.tokens_per_second == pytest.approx(predicted, rel=1e-9)


@settings(max_examples=150, deadline=None)
@given(cases(fewest=4, most=5))
def test_with_many_requests_it_is_near_brute_force(case: tuple[Survivals, CycleCosts]) -> None:
    """Up to five requests every subset, leader and length is looked at: equal, which is more than near."""
    survivals, costs = case
    best = choose(survivals, costs)
    assert best.tokens_per_second == pytest.approx(brute_force(survivals, costs), rel=1e-9)
    assert best.tokens_per_second >= evaluate([1] * len(survivals), 1, survivals, costs) * (1 - 1e-9)


def test_a_leap_of_the_cost_within_a_block_is_seen_with_many_requests() -> None:
    """Nothing stands, a step's cost leaps at its fourth row and a draft's at its third token: what once
    lost half of the best choice."""
    survivals: Survivals = [(), (0.0,), (0.0,), (0.0,), (0.0, 0.0, 0.0)]
    verify = (0.0, 0.01, 0.01, 0.01, *(1.01,) * 17)
    drafts = ((0.0,) * 4, *((0.0, 0.0, 0.0, 1.0),) * 5)
    costs = CycleCosts(verify, drafts, 0.0, 0.0)
    assert choose(survivals, costs).tokens_per_second == pytest.approx(brute_force(survivals, costs))


@pytest.mark.parametrize("num_requests", [2, 5, 6, 12])
def test_a_staircase_is_looked_over_at_every_load(num_requests: int) -> None:
    """The first proposal beyond one each makes the step dearer; the others of that step are free."""
    survivals = [survival_of((0.9,) * 3)] * num_requests
    step = [1.0] * (2 * num_requests) + [1.6] * (2 * num_requests)
    costs = CycleCosts((0.0, *step), flat_draft(num_requests, 3, 0.0), 0.0, 0.0)
    best = choose(survivals, costs, max_cohorts=1)
    assert best.block_sizes == (4,) * num_requests
    assert best.tokens_per_second == pytest.approx(evaluate([4] * num_requests, 1, survivals, costs))


def test_a_longer_cycle_can_be_the_better_one() -> None:
    """Requests in a Run step while others draft: the best here drafts further than anything stands."""
    survivals: Survivals = [(0.5, 0.25), (0.0, 0.0, 0.0), (), ()]
    verify = (
        0.0,
        0.01,
        0.01,
        0.54,
        1.7,
        1.7,
        3.24,
        4.98,
        6.54,
        7.28,
        8.08,
        8.69,
        8.69,
        9.38,
        9.38,
        10.2,
        11.1,
    )
    drafts = ((0.0,) * 4, *((0.0, 0.9, 2.86, 4.28),) * 4)
    costs = CycleCosts(verify, drafts, 0.8, 0.0)
    assert choose(survivals, costs).tokens_per_second == pytest.approx(brute_force(survivals, costs))


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.6, 0.9, 1.0])
@pytest.mark.parametrize("num_requests", [4, 5])
def test_with_many_equal_requests_it_is_exact_where_drafts_cost_alike(
    num_requests: int, acceptance: float
) -> None:
    survivals = [survival_of((acceptance,) * 2)] * num_requests
    verify = (0.0, *(1.0 + (rows > 8) + 0.01 * rows for rows in range(1, 3 * num_requests + 1)))
    costs = CycleCosts(verify, flat_draft(num_requests, 2, 0.3), 0.2, 0.01)
    assert choose(survivals, costs).tokens_per_second == pytest.approx(brute_force(survivals, costs))


def staircase_case() -> tuple[Survivals, CycleCosts]:
    """A step at the third row, then flat to the eighth: the rate falls before it rises."""
    verify = (0.0, 1.0, 1.0, *(1.9,) * 6)
    return [survival_of((0.9,) * 7)], CycleCosts(verify, flat_draft(1, 7, 0.0), 0.0, 0.0)


def test_a_staircase_is_looked_over() -> None:
    survivals, costs = staircase_case()
    rates = [evaluate([size], 1, survivals, costs) for size in range(1, 9)]
    assert rates[2] < rates[1] < rates[7], "the case has its fall before the best"
    assert choose(survivals, costs).block_sizes == (8,)


def test_runs_where_nothing_stands_or_the_network_is_dear() -> None:
    verify = (0.0, *(1.0,) * 16)
    free = CycleCosts(verify, flat_draft(2, 7, 0.1), 0.0, 0.0)
    assert choose([(0.0,) * 7] * 2, free).block_sizes == (1, 1)
    far = CycleCosts(verify, flat_draft(2, 7, 0.1), 9.0, 0.0)
    assert choose([(1.0,) * 7] * 2, far).block_sizes == (1, 1)
    assert choose([(1.0,) * 7] * 2, free).block_sizes == (8, 8)
    assert choose([(), (1.0,) * 7], free).block_sizes == (1, 8)
    assert choose([], free) == Choice((), 1, 0.0)


def test_two_cohorts_hide_drafting_behind_verification() -> None:
    """T_V 1 + .1 rows, T_D + T_net 3, eight requests of v = 4."""
    verify = (0.0, *(1.0 + 0.1 * rows for rows in range(1, 65)))
    costs = CycleCosts(verify, flat_draft(8, 7, 2.0), 1.0, 0.0)
    sizes, survivals = (4,) * 8, [(1.0,) * 7] * 8
    one = cycle_of(shape_of(sizes), 1, costs)
    two = cycle_of(shape_of(sizes), 2, costs)
    assert one.seconds == pytest.approx(1 + 3.2 + 3)
    assert two.seconds == pytest.approx(1 + 1.6 + 3)
    assert evaluate(sizes, 2, survivals, costs) > evaluate(sizes, 1, survivals, costs)


def test_one_request_alone_has_one_cohort() -> None:
    costs = CycleCosts((0.0, *(1.0,) * 8), flat_draft(1, 7, 5.0), 5.0, 0.0)
    assert choose([(1.0,) * 7], costs).num_cohorts == 1


def test_running_requests_go_on_while_others_draft() -> None:
    costs = CycleCosts((0.0, *(1.0,) * 16), flat_draft(2, 7, 6.0), 2.5, 0.0)
    cycle = cycle_of(Shape(1, 1, 7, 7), 1, costs)
    assert cycle.seconds == pytest.approx(1 + 6 + 2.5 + 0.5)
    assert cycle.num_run_steps == pytest.approx(10.0)
