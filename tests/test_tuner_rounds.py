"""What a round does with a draft, where proposals come from, and when to probe or change."""

from __future__ import annotations

import inspect

import pytest

from coordinator.tuner import verify
from coordinator.tuner.choose import Choice
from coordinator.tuner.costs import CostPriors
from coordinator.tuner.probing import ProbeSettings, is_surprise, longest_probe, other_size, probe_probability
from coordinator.tuner.sources import Offer, Source, kept_tail, pick_source
from coordinator.tuner.tuner import TunedRequest, Tuner, settle
from coordinator.tuner.verify import (
    BlindDraft,
    Price,
    SeeingDraft,
    size_of_blind_round,
    sizes_of_seeing_round,
)

FLAT = (0.0, *(0.01,) * 64)


def test_confident_proposals_are_verified_and_doubtful_ones_are_not() -> None:
    price = Price(100.0, (0.0, *(0.01 + 0.003 * rows for rows in range(1, 65))), 0)
    sizes = sizes_of_seeing_round([SeeingDraft((0.95, 0.9, 0.2, 0.9)), SeeingDraft((0.1, 0.9))], price)
    assert sizes == (3, 1)


def test_rows_that_cost_nothing_are_all_verified() -> None:
    assert sizes_of_seeing_round([SeeingDraft((0.5, 0.5)), SeeingDraft((0.1,))], Price(100.0, FLAT, 3)) == (
        3,
        2,
    )


def test_a_staircase_under_a_cohort_is_looked_over() -> None:
    table = (0.0, 0.01, 0.01, *(0.0195,) * 62)
    assert sizes_of_seeing_round([SeeingDraft((0.9,) * 7)], Price(100.0, table, 0)) == (8,)


def test_the_rejection_path_sees_neither_proposals_nor_confidences() -> None:
    assert set(BlindDraft.__dataclass_fields__) == {"num_proposals"}
    assert list(inspect.signature(verify.size_of_blind_round).parameters) == ["draft"]
    assert size_of_blind_round(BlindDraft(4)) == 5


def test_the_source_with_the_greatest_gain() -> None:
    lookup = Offer(Source.LOOKUP, (0.5, 0.4), 0.001)
    drafter = Offer(Source.DRAFTER, (0.9, 0.8, 0.7, 0.6), 0.006)
    assert pick_source([lookup, drafter], FLAT, 0).source is Source.DRAFTER
    far = Offer(Source.DRAFTER, drafter.survival, 0.060)
    assert pick_source([lookup, far], FLAT, 0).source is Source.LOOKUP
    assert pick_source([Offer(Source.LOOKUP, (0.05,), 0.001), far], FLAT, 0).source is Source.RUN
    assert pick_source([], FLAT, 0).block_size == 1


def test_a_kept_tail_is_an_offer_without_a_draft() -> None:
    tail = Offer(Source.TAIL, (0.6, 0.5), 0.001)
    fresh = Offer(Source.DRAFTER, (0.6, 0.5), 0.010)
    pick = pick_source([fresh, tail], FLAT, 0)
    assert pick.source is Source.TAIL
    assert pick.block_size == 3


@pytest.mark.parametrize(
    ("verified", "accepted", "anchor", "expected"),
    [
        (2, 2, 13, (14, 15)),
        (2, 1, 12, ()),
        (2, 2, 99, ()),
        (5, 5, 16, ()),
        (4, 4, 15, ()),
        (0, 0, 11, (12, 13, 14, 15)),
    ],
)
def test_what_is_left_of_a_draft(
    verified: int, accepted: int, anchor: int, expected: tuple[int, ...]
) -> None:
    assert kept_tail((11, 12, 13, 14, 15), verified, accepted, anchor) == expected


def test_probes_cost_no_more_than_their_budget() -> None:
    settings = ProbeSettings(most=0.02, budget=0.006)
    assert probe_probability(0.010, 0.0, settings) == 0.02
    assert probe_probability(0.010, 0.001, settings) == 0.02
    dear = probe_probability(0.010, 0.060, settings)
    assert dear * 0.060 == pytest.approx(0.006 * 0.010)


def test_a_probe_shows_what_can_be_reached() -> None:
    assert longest_probe((0.0,) * 7) == 2
    assert longest_probe((0.9,) * 7) == 8
    assert longest_probe((0.5, 0.25, 0.12, 0.05, 0.02)) == 5
    assert longest_probe(()) == 1
    assert {other_size(7, draw / 100) for draw in range(100)} == set(range(1, 9))


def test_only_a_success_that_was_not_believed_in_is_a_surprise() -> None:
    assert is_surprise(0.1, 2)
    assert not is_surprise(0.1, 0)
    assert not is_surprise(0.8, 2)


def test_a_plan_stays_while_it_is_almost_as_good_and_can_be_left_both_ways() -> None:
    low, high = Choice((2,), 1, 100.0), Choice((8,), 1, 101.0)
    assert settle(low, high, 0.02) is low
    assert settle(high, Choice((2,), 1, 102.0), 0.02) is high
    assert settle(low, Choice((8,), 1, 103.0), 0.02).block_sizes == (8,)
    assert settle(high, Choice((2,), 1, 104.0), 0.02).block_sizes == (2,)
    run = Choice((1,), 1, 101.5)
    assert settle(high, run, 0.02) is run, "plain decoding needs no margin"
    assert settle(run, Choice((2,), 1, 102.0), 0.02) is run


def test_a_request_that_cannot_draft_runs_and_nobody_is_asked() -> None:
    tuner = Tuner(CostPriors(), lambda: 0.0)
    for _ in range(20):
        decision = tuner.decide([TunedRequest("r", "chat", 0)])
        assert decision.block_sizes == (1,)
        assert decision.plan.num_draft_tokens == 0


def test_no_size_is_beyond_what_the_request_has_use_for() -> None:
    draws = iter([0.0, 0.9] * 4000)
    tuner = Tuner(CostPriors(), lambda: next(draws))
    for most in (7, 7, 3, 2, 1, 0):
        requests = [TunedRequest("a", "chat", most), TunedRequest("b", "chat", 7)]
        for _ in range(10):
            sizes = tuner.decide(requests).block_sizes
            assert 1 <= sizes[0] <= most + 1
            assert 1 <= sizes[1] <= 8
