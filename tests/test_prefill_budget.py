"""A long prompt takes no more of a step than the budget, once a row's cost is known."""

from __future__ import annotations

from target_service.prefill_budget import PrefillBudget


def test_before_a_measurement_the_most_rows() -> None:
    assert PrefillBudget(0.1, 16, 256).rows == 256


def test_rows_follow_the_measured_cost() -> None:
    budget = PrefillBudget(0.1, 16, 256)
    for _ in range(20):
        budget.note(255, 256, 256 * 0.001)
    assert 95 <= budget.rows <= 100
    for _ in range(40):
        budget.note(64, 65, 64 * 0.0005)
    assert 190 <= budget.rows <= 200


def test_the_fixed_cost_of_a_step_is_no_cost_of_rows() -> None:
    # 50 ms whatever the step holds and 1 ms a row: 100 rows fit into 0.1 s, however small chunks were.
    budget = PrefillBudget(0.1, 16, 256)
    for _ in range(20):
        budget.note(0, 4, 0.05)
    for _ in range(50):
        rows = budget.rows
        budget.note(rows, rows + 4, 0.05 + 0.001 * rows)
    assert 95 <= budget.rows <= 105


def test_a_lone_prompt_takes_all_rows() -> None:
    budget = PrefillBudget(0.001, 16, 256)
    budget.note(256, 256, 25.0)
    assert budget.rows == 256
    budget.note(256, 257, 25.0)
    assert budget.rows == 16


def test_steps_of_decoding_teach_nothing_of_rows() -> None:
    budget = PrefillBudget(0.1, 16, 256)
    budget.note(0, 8, 0.1)
    budget.note(15, 200, 9.0)
    assert budget.rows == 256


def test_no_budget_is_a_fixed_number() -> None:
    budget = PrefillBudget(0.0, 16, 256)
    budget.note(255, 256, 100.0)
    assert budget.rows == 256
