"""Prefix acceptance, stops and limits inside a block (pitfalls A10, B1, B2, B6)."""

from __future__ import annotations

import pytest

from target_service.commands import FinishReason
from target_service.verification import Limits, accepted_prefix, decide

FREE = Limits(frozenset(), 100)
STOP = 9


def test_acceptance_is_a_prefix_not_a_sum() -> None:
    # A10: matches after the first miss never count; id 0 is an id like any other.
    assert accepted_prefix([0, 5, 7, 8, 3], [0, 6, 7, 8]) == 1
    decision = decide([0, 5, 7, 8, 3], [0, 6, 7, 8], FREE)
    assert decision.tokens == (0, 5)
    assert decision.num_accepted == 1


def test_full_acceptance_has_a_bonus() -> None:
    assert decide([0, 0, 0, 4], [0, 0, 0], FREE).tokens == (0, 0, 0, 4)


@pytest.mark.parametrize("accepted", range(5))
def test_every_length_of_prefix(accepted: int) -> None:
    choices = [1, 2, 3, 4, 5]
    proposals = [*choices[:accepted], *[0] * (4 - accepted)]
    decision = decide(choices, proposals, FREE)
    assert decision.num_accepted == accepted
    assert decision.tokens == tuple(choices[: accepted + 1])
    assert decision.finish_reason is None


def test_stop_is_tested_before_the_cap() -> None:
    # B2: the cap of 5 falls after the stop, then before it.
    first = decide([10, 11, STOP, 20, 21, 22], [10, 11, STOP, 20, 21], Limits(frozenset({STOP}), 5))
    assert (first.tokens, first.finish_reason) == ((10, 11, STOP), FinishReason.STOP)
    second = decide([10, 11, 12, 20, 21, STOP], [10, 11, 12, 20, 21], Limits(frozenset({STOP}), 5))
    assert (second.tokens, second.finish_reason) == ((10, 11, 12, 20, 21), FinishReason.LENGTH)


@pytest.mark.parametrize("slot", range(5))
def test_stop_at_every_slot(slot: int) -> None:
    # B1: EOS as an accepted proposal or as the bonus ends the block there, counters included.
    choices = [1, 2, 3, 4, 5]
    choices[slot] = STOP
    decision = decide(choices, choices[:4], Limits(frozenset({STOP}), 100))
    assert decision.tokens == tuple(choices[: slot + 1])
    assert decision.num_accepted == min(slot + 1, 4)
    assert decision.finish_reason is FinishReason.STOP


def test_stop_exactly_at_the_cap_is_a_stop() -> None:
    decision = decide([1, STOP], [1], Limits(frozenset({STOP}), 2))
    assert decision.finish_reason is FinishReason.STOP


@pytest.mark.parametrize("remaining", [1, 2, 4, 5])
def test_limit_inside_a_block(remaining: int) -> None:
    decision = decide([1, 2, 3, 4], [1, 2, 3], Limits(frozenset(), remaining))
    assert len(decision.tokens) == min(remaining, 4)
    assert (decision.finish_reason is FinishReason.LENGTH) == (remaining <= 4)
    assert decision.num_accepted <= len(decision.tokens)


def test_rejected_stop_changes_nothing() -> None:
    decision = decide([1, 2], [STOP], Limits(frozenset({STOP}), 10))
    assert decision.tokens == (1,)
    assert decision.finish_reason is None
