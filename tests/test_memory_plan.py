"""The pool is planned once with headroom, and refused with numbers when it does not fit."""

from __future__ import annotations

import pytest
import torch

from protos.errors import InvalidRequest
from target_service.memory_plan import HEADROOM, PoolWish, StepSize, available_bytes, plan_pages

MIB = 1 << 20
PAGE = 64 * 1024


def test_the_largest_step_and_the_headroom_are_left_free() -> None:
    wish = PoolWish(num_pages=0, max_bytes=1 << 60, max_useful_pages=1 << 40)
    pages = plan_pages(wish, PAGE, step_bytes=200 * MIB, available=1200 * MIB)
    assert pages * PAGE <= (1200 - 200) * MIB * (1 - HEADROOM)
    assert (pages + 1) * PAGE > (1200 - 200) * MIB * (1 - HEADROOM)


@pytest.mark.parametrize(("max_bytes", "useful", "pages"), [(10 * PAGE, 100, 10), (1 << 60, 7, 7)])
def test_limits_of_the_wish(max_bytes: int, useful: int, pages: int) -> None:
    assert plan_pages(PoolWish(0, max_bytes, useful), PAGE, 0, 1 << 40) == pages


def test_too_many_pages_are_refused_with_numbers() -> None:
    wish = PoolWish(num_pages=1000, max_bytes=0, max_useful_pages=0)
    with pytest.raises(InvalidRequest, match="ask for at most 272") as error:
        plan_pages(wish, PAGE, step_bytes=0, available=20 * MIB + 60 * 1024)
    assert error.value.field == "num_pages"


def test_no_page_fits() -> None:
    with pytest.raises(InvalidRequest, match="no page"):
        plan_pages(PoolWish(0, 1000, 5), PAGE, 0, 1 << 40)
    with pytest.raises(InvalidRequest, match="no page"):
        plan_pages(PoolWish(0, 1 << 40, 5), PAGE, 300 * MIB, 200 * MIB)


def test_step_bytes_cover_the_logits() -> None:
    step = StepSize(
        rows=256, decision_rows=64, hidden_size=576, intermediate_size=1536, vocab_size=49152, dtype_bytes=4
    )
    assert step.num_bytes() > 64 * 49152 * 4 * 4


def test_this_machine_tells_its_memory() -> None:
    assert available_bytes(torch.device("cpu")) > 100 * MIB
