"""What depends on the step alone."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch

from draft_service.training.schedule import AnchorOrder, block_size_of, lr_factor


def test_the_rate_rises_stays_and_falls() -> None:
    factors = [lr_factor(step, 100, 0.04, 0.5) for step in range(100)]
    assert factors[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert set(factors[4:50]) == {1.0}
    assert factors[50:] == sorted(factors[50:], reverse=True)
    assert 0 < factors[-1] < 0.05
    assert lr_factor(7, 100, 0.0, 0.0) == 1.0


def test_every_epoch_holds_every_anchor_once_in_another_order() -> None:
    order = AnchorOrder(50, seed=3)
    first, second = order.take(0, 50), order.take(50, 50)
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(50))
    assert first.tolist() != second.tolist()
    assert AnchorOrder(50, seed=4).take(0, 50).tolist() != first.tolist()


def test_the_stream_does_not_depend_on_how_it_is_cut() -> None:
    whole = AnchorOrder(37, seed=1).take(0, 200)
    cut = AnchorOrder(37, seed=1)
    starts = [0, 5, 36, 37, 38, 90, 111, 200]
    parts = [cut.take(a, b - a) for a, b in itertools.pairwise(starts)]
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(AnchorOrder(37, seed=1).take(120, 30), whole[120:150])


def test_block_sizes_are_drawn_from_step_and_group_alone() -> None:
    drawn = [block_size_of(step, group, 7, 1.0, seed=0) for step in range(300) for group in range(2)]
    assert drawn == [block_size_of(step, group, 7, 1.0, seed=0) for step in range(300) for group in range(2)]
    counts = Counter(drawn)
    assert set(counts) == set(range(1, 8))
    # P(k) ~ 1 / k: 1 is drawn about twice as often as 2 and seven times as often as 7.
    assert counts[1] / len(drawn) == pytest.approx(1 / 2.593, abs=0.06)
    assert counts[2] / len(drawn) == pytest.approx(0.5 / 2.593, abs=0.06)
