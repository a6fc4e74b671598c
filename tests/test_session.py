"""The session: which verdicts it takes, ignores, or calls a gap."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.session import Commit, Outcome, RoundKind, Session
from protos import target_pb2
from protos.common_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP
from protos.errors import ContractMismatch


def opened(max_tokens: int = 20) -> Session:
    """A session of prompt [1, 2, 3] whose Open decided 10, at epoch 7."""
    session = Session([1, 2, 3], 3, max_tokens)
    session.reopen(7)
    assert session.commit(verdict(0, [10], 4)).outcome is Outcome.TAKEN
    return session


def verdict(number: int, tokens: list[int], length: int, **fields: Any) -> target_pb2.Verdict:
    values: dict[str, Any] = {"epoch": 7, "done": True, "num_accepted": max(len(tokens) - 1, 0)}
    return target_pb2.Verdict(round=number, tokens=tokens, committed_length=length, **{**values, **fields})


def test_open_verify_commit() -> None:
    session = opened()
    assert session.begin(RoundKind.VERIFY, 3) == 1
    commit = session.commit(verdict(1, [11, 12], 6))
    assert commit == Commit(Outcome.TAKEN, (11, 12), True)
    assert session.tokens == [1, 2, 3, 10, 11, 12]
    assert session.num_remaining == 17
    session.check_integrity()


@pytest.mark.parametrize("fields", [{"epoch": 6}, {"epoch": 8}, {"number": 0}, {"number": 2}])
def test_other_rounds_and_epochs_are_ignored(fields: dict[str, int]) -> None:
    session = opened()
    session.begin(RoundKind.VERIFY, 3)
    other = verdict(fields.pop("number", 1), [11, 12], 6, **fields)
    assert session.commit(other).outcome is Outcome.IGNORED
    assert session.awaited is not None


def test_a_repeated_verdict_is_ignored() -> None:
    session = opened()
    session.begin(RoundKind.VERIFY, 3)
    first = verdict(1, [11, 12], 6)
    session.commit(first)
    assert session.commit(first).outcome is Outcome.IGNORED
    session.begin(RoundKind.VERIFY, 3)
    assert session.commit(first).outcome is Outcome.IGNORED
    assert session.tokens == [1, 2, 3, 10, 11, 12]


@pytest.mark.parametrize(("tokens", "length"), [([11, 12], 7), ([11, 12], 5), ([11], 4), ([], 3)])
def test_a_verdict_that_starts_elsewhere_is_a_gap(tokens: list[int], length: int) -> None:
    session = opened()
    session.begin(RoundKind.VERIFY, 3)
    assert session.commit(verdict(1, tokens, length)).outcome is Outcome.GAP
    assert session.tokens == [1, 2, 3, 10]


def streamed(number: int, token: int, length: int, done: bool = False) -> target_pb2.Verdict:
    return verdict(number, [token], length, done=done)


def test_a_run_streams_and_its_repeat_gives_the_suffix() -> None:
    session = opened()
    session.begin(RoundKind.RUN)
    assert session.commit(streamed(1, 11, 5)).tokens == (11,)
    assert session.commit(streamed(1, 11, 5)).outcome is Outcome.IGNORED
    whole = verdict(1, [11, 12, 13], 7)
    assert session.commit(whole) == Commit(Outcome.TAKEN, (12, 13), True)
    assert session.tokens == [1, 2, 3, 10, 11, 12, 13]


def test_a_repeat_that_only_says_done_ends_the_run() -> None:
    session = opened()
    session.begin(RoundKind.RUN)
    session.commit(streamed(1, 11, 5))
    assert session.commit(verdict(1, [11], 5)) == Commit(Outcome.TAKEN, (), True)
    assert session.awaited is None


def test_an_overlap_that_differs_is_a_gap() -> None:
    session = opened()
    session.begin(RoundKind.RUN)
    session.commit(streamed(1, 11, 5))
    assert session.commit(verdict(1, [99, 12], 6)).outcome is Outcome.GAP


def test_a_lost_token_of_a_run_is_a_gap() -> None:
    session = opened()
    session.begin(RoundKind.RUN)
    assert session.commit(streamed(1, 12, 6)).outcome is Outcome.GAP


@pytest.mark.parametrize(
    ("tokens", "accepted", "reason"), [([11], 1, FINISH_REASON_STOP), ([11, 12], 1, FINISH_REASON_LENGTH)]
)
def test_the_target_finishes_inside_a_block(tokens: list[int], accepted: int, reason: Any) -> None:
    session = opened()
    session.begin(RoundKind.VERIFY, 4)
    session.commit(verdict(1, tokens, 4 + len(tokens), num_accepted=accepted, finish_reason=reason))
    assert session.is_finished
    assert session.finish_reason == reason
    session.check_integrity()


@pytest.mark.parametrize(
    ("tokens", "fields"),
    [
        ([11, 12, 13], {"num_accepted": 1}),
        ([11], {"num_accepted": 1}),
        ([11, 12, 13, 14, 15], {"num_accepted": 4}),
        ([11, 12], {"done": False}),
        ([11, 12], {"done": False, "finish_reason": FINISH_REASON_STOP}),
    ],
)
def test_a_verdict_that_contradicts_itself_is_an_error(tokens: list[int], fields: dict[str, Any]) -> None:
    session = opened()
    session.begin(RoundKind.VERIFY, 3)
    with pytest.raises(ContractMismatch):
        session.commit(verdict(1, tokens, 4 + len(tokens), **fields))


def test_more_tokens_than_remain_are_an_error() -> None:
    session = opened(max_tokens=2)
    session.begin(RoundKind.VERIFY, 3)
    with pytest.raises(ContractMismatch, match="1 were left"):
        session.commit(verdict(1, [11, 12], 6))


def test_a_stop_string_cuts_the_end() -> None:
    session = opened()
    session.begin(RoundKind.VERIFY, 3)
    session.commit(verdict(1, [11, 12, 13], 7))
    session.finish(FINISH_REASON_STOP, 5)
    assert session.tokens == [1, 2, 3, 10, 11]
    session.check_integrity()


def test_reopen_forgets_the_awaited_round_and_keeps_the_tokens() -> None:
    session = opened()
    session.begin(RoundKind.VERIFY, 3)
    session.reopen(9)
    assert session.commit(verdict(1, [11, 12], 6)).outcome is Outcome.IGNORED
    assert session.commit(verdict(0, [11], 5, epoch=9)).tokens == (11,)
    session.check_integrity()


def test_an_epoch_never_falls() -> None:
    session = opened()
    with pytest.raises(AssertionError):
        session.reopen(7)


def test_a_fetch_commits_nothing() -> None:
    session = opened()
    session.begin(RoundKind.FETCH)
    assert session.commit(verdict(1, [11], 5)).outcome is Outcome.IGNORED
    assert not session.complete_fetch(target_pb2.Features(epoch=7, round=0))
    assert session.complete_fetch(target_pb2.Features(epoch=7, round=1))
    assert session.awaited is None
    assert session.tokens == [1, 2, 3, 10]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 9)), max_size=40))
def test_whatever_arrives_tokens_only_grow_and_the_invariant_holds(
    arrivals: list[tuple[int, int, int]],
) -> None:
    session = opened()
    for kind, num_tokens, offset in arrivals:
        if session.is_finished or session.num_remaining <= 4:
            return
        if session.awaited is None:
            session.begin((RoundKind.VERIFY, RoundKind.RUN, RoundKind.FETCH)[kind], 3 if kind == 0 else 0)
        before = list(session.tokens)
        tokens = list(range(50, 50 + num_tokens + 1))
        arrived = verdict(session.round, tokens, len(before) + num_tokens + 1 + (offset == 9))
        session.commit(arrived)
        assert session.tokens[: len(before)] == before
        session.check_integrity()
        if session.awaited is not None and session.awaited.kind is RoundKind.FETCH:
            session.complete_fetch(target_pb2.Features(epoch=7, round=session.round))
