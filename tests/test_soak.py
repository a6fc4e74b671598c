"""What a soak says of what it saw: leaks, hangs and leftovers fail it, and each of them alone."""

from __future__ import annotations

from typing import Any

import pytest

from deploy.soak_figure import write
from deploy.soak_record import Moment, Soak, growth, record

GOOD: dict[str, Any] = {"surplus_pages": 0, "left_running": 0, "streams": {"target-1": 2, "draft-1": 2}}


def soak(leak: float = 0.0, silence: float = 1.0, failures: tuple[str, ...] = ()) -> Soak:
    """Twenty minutes in which one process grows by so many MiB a minute."""
    moments = [
        Moment(
            seconds=6.0 * number,
            memory={"target-1": 400.0 + leak * number / 10, "target-2": 300.0 * (number % 7 > 0)},
            files={"target-1": 20, "target-2": 20},
            pages_held=number % 9,
            num_running=number % 3,
            num_done=number,
        )
        for number in range(200)
    ]
    faults = [(60.0, "target-2", "SIGKILL")]
    return Soak(moments=moments, faults=faults, failures=list(failures), longest_silence=silence)


def test_memory_that_grows_is_seen_and_a_process_that_is_gone_is_no_growth() -> None:
    assert growth(soak(leak=2.0).moments, "target-1") == pytest.approx(0.046, abs=0.002)
    assert growth(soak().moments, "target-1") == 0.0
    assert growth(soak().moments, "target-2") == 0.0


def test_a_good_run_passes() -> None:
    found = record(20.0, 2, soak(), GOOD)
    assert found["pass"]
    assert found["memory_judged"]
    assert found["faults"] == [{"seconds": 60.0, "process": "target-2", "signal": "SIGKILL"}]


@pytest.mark.parametrize(
    ("run", "end"),
    [
        (soak(leak=4.0), {}),
        (soak(silence=500.0), {}),
        (soak(failures=("UNAVAILABLE: gone",)), {}),
        (soak(), {"surplus_pages": 1}),
        (soak(), {"left_running": 1}),
        (soak(), {"streams": {"target-1": 3}}),
    ],
)
def test_each_thing_that_is_wrong_fails_it(run: Soak, end: dict[str, Any]) -> None:
    assert not record(20.0, 2, run, GOOD | end)["pass"]


def test_a_short_run_does_not_judge_memory() -> None:
    found = record(0.5, 2, soak(leak=4.0), GOOD)
    assert found["pass"]
    assert not found["memory_judged"]


def test_the_figure_is_drawn() -> None:
    assert write(record(20.0, 2, soak(), GOOD)).startswith(b"\x89PNG")
