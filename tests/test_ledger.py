"""What is counted, and when: after the block was cut (pitfalls B9 and G1)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coordinator.ledger import Block, Ledger, RoundTimes
from protos import coordinator_pb2, target_pb2
from protos.coordinator_pb2 import PROPOSAL_SOURCE_DRAFTER, PROPOSAL_SOURCE_LOOKUP
from tests.coordinator_fakes import TableEngine
from tests.coordinator_harness import TablePort, complete, describe_target, make_coordinator, request


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


KERNELS: dict[str, Any] = {"linear_kernel": "fp16", "dtype": "f32", "num_threads": 1}
OTHER_KERNELS: tuple[dict[str, Any], ...] = (
    {"linear_kernel": "stock"},
    {"attention_kernel": "flash"},
    {"dtype": "bf16"},
    {"num_threads": 2},
)


async def ledger_after_moves(*changes: dict[str, Any], first_length: int = 6) -> coordinator_pb2.Ledger:
    """The ledger that a caller gets whose target is replaced in mid-text, once for each change.

    Args:
        first_length: committed tokens of the verdict at which the first target goes; its prompt has 3.
    """
    engine, waiting = TableEngine(), list(changes)

    def move() -> None:
        port.describe = describe_target(**{**KERNELS, **waiting.pop(0)})
        port.lose()

    def fault(event: target_pb2.Event) -> list[target_pb2.Event]:
        length = first_length + 4 * (len(changes) - len(waiting))
        if waiting and event.HasField("verdict") and event.verdict.committed_length == length:
            asyncio.get_running_loop().call_soon(move)
            return []
        return [event]

    port = TablePort(engine, on_event=fault)
    port.describe = describe_target(**KERNELS)
    answer, _, failure = await complete(make_coordinator(port), request(max_tokens=20))
    assert failure is None
    assert answer.token_ids == list(range(20))
    ledger = answer.finished.ledger
    assert ledger.num_reopens == len(changes)
    return ledger


@pytest.mark.parametrize("change", OTHER_KERNELS, ids=lambda change: next(iter(change)))
async def test_a_text_that_moves_to_other_kernels_says_so(change: dict[str, Any]) -> None:
    assert (await ledger_after_moves(change)).near_tie_possible


async def test_a_text_that_came_back_has_been_away() -> None:
    assert (await ledger_after_moves({"num_threads": 2}, {})).near_tie_possible


@pytest.mark.parametrize("change", [{}, {"num_pages": 7}, {"max_context": 256}], ids=str)
async def test_a_text_that_moves_between_equal_kernels_has_no_near_ties(change: dict[str, Any]) -> None:
    assert not (await ledger_after_moves(change)).near_tie_possible


async def test_a_target_that_decided_nothing_leaves_no_near_ties() -> None:
    assert not (await ledger_after_moves({"num_threads": 2}, first_length=4)).near_tie_possible
