"""A long prompt takes no more of a step than the budget, once a row's cost is known."""

from __future__ import annotations

from target_service.prefill_budget import PrefillBudget


def test_before_a_measurement_the_most_rows() -> None:
    assert PrefillBudget(0.1, 16, 256).rows == 256


def test_rows_follow_the_measured_cost() -> None:
    budget = PrefillBudget(0.1, 16, 256)
    for _ in range(20):
        budget.note(256, 256, 256 * 0.001)
    assert 95 <= budget.rows <= 100
    for _ in range(40):
        budget.note(64, 64, 64 * 0.0005)
    assert 190 <= budget.rows <= 200


def test_prefill_always_gets_on() -> None:
    budget = PrefillBudget(0.001, 16, 256)
    budget.note(256, 256, 25.0)
    assert budget.rows == 16


def test_steps_of_decoding_teach_nothing() -> None:
    budget = PrefillBudget(0.1, 16, 256)
    budget.note(0, 8, 0.1)
    budget.note(16, 200, 9.0)
    assert budget.rows == 256


def test_no_budget_is_a_fixed_number() -> None:
    budget = PrefillBudget(0.0, 16, 256)
    budget.note(256, 256, 100.0)
    assert budget.rows == 256
