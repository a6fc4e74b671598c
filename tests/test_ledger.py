"""What is counted, and when: after the block was cut (pitfalls B9 and G1)."""

from __future__ import annotations

import pytest

from coordinator.ledger import Block, Ledger, RoundTimes
from protos.coordinator_pb2 import PROPOSAL_SOURCE_DRAFTER, PROPOSAL_SOURCE_LOOKUP


def block(drafted: int, accepted: int, kept: int | None = None, source: int = 1) -> Block:
    kept = accepted + 1 if kept is None else kept
    return Block(source, drafted, drafted, accepted, kept)  # type: ignore[arg-type]


def test_mean_length_counts_the_bonus_and_the_rate_does_not() -> None:
    ledger = Ledger()
    for accepted in (4, 2, 0):
        ledger.note_block(block(4, accepted))
    message = ledger.to_message()
    assert sum(message.accept_lengths) == 9
    assert message.accept_length == 3.0
    assert message.acceptance_rate == 0.5
    assert list(message.accepted_per_position) == [2, 2, 1, 1]
    assert list(message.verified_per_position) == [3, 3, 3, 3]
    assert list(message.accepted_histogram) == [1, 0, 1, 0, 1]


def test_tokens_after_the_end_do_not_count() -> None:
    ledger = Ledger()
    ledger.note_block(block(5, 3, kept=3))
    message = ledger.to_message()
    assert message.accept_length == 3
    assert list(message.verified_per_position) == [1, 1, 1]
    usage = ledger.usage(10, 3, 1.0)
    assert (usage.drafted_tokens, usage.verified_tokens, usage.accepted_tokens) == (5, 3, 3)


def test_a_stop_string_may_cut_accepted_tokens() -> None:
    ledger = Ledger()
    ledger.note_block(block(5, 5, kept=2))
    assert ledger.num_accepted == 2
    assert ledger.num_verified == 2


def test_rates_are_unset_without_data() -> None:
    message = Ledger().to_message()
    assert not message.HasField("acceptance_rate")
    assert not message.HasField("accept_length")
    assert list(message.accepted_histogram) == []


def test_nothing_verified_leaves_the_rate_unset() -> None:
    ledger = Ledger()
    ledger.note_block(Block(PROPOSAL_SOURCE_DRAFTER, 3, 0, 0, 1))
    assert not ledger.to_message().HasField("acceptance_rate")
    assert ledger.to_message().accept_length == 1


def test_lookup_rounds_are_draft_rounds_too() -> None:
    ledger = Ledger()
    ledger.note_block(block(3, 1, source=PROPOSAL_SOURCE_LOOKUP))
    ledger.note_block(block(3, 1, source=PROPOSAL_SOURCE_DRAFTER))
    message = ledger.to_message()
    assert (message.num_draft_rounds, message.num_lookup_rounds) == (2, 1)


def test_the_parts_of_a_round_add_up_to_it() -> None:
    ledger = Ledger()
    ledger.note_times(RoundTimes(0.002, 0.010, 0.015, 0.016))
    message = ledger.to_message()
    parts = (message.draft_ms, message.verify_ms, message.network_ms, message.scheduling_ms)
    assert parts == pytest.approx((2, 10, 3, 1))
    assert sum(parts) == pytest.approx(16)
