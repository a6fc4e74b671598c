"""Every fencing case of the protocol has one right answer (pitfalls F4, F8, D17)."""

from __future__ import annotations

import pytest
import torch

from target_service import commands as c
from target_service.commands import RefusalCode
from target_service.engine import Engine
from target_service.requests import Requests
from tests.fakes import KEY, params, table_engine

KEY_R = c.RequestKey("test", "r")
TABLE = torch.eye(8).roll(1, dims=1) * 5.0  # next token = token + 1 mod 8
PROMPT = (3, 4)


def at(number: int, epoch: int = 5) -> c.Address:
    return c.Address(KEY_R, epoch, number)


def open_command(epoch: int = 5, tokens: tuple[int, ...] = PROMPT) -> c.Open:
    return c.Open(at(0, epoch), tokens, 2, KEY, params(20), want_features=True)


def opened() -> Engine:
    engine = table_engine(TABLE)
    engine.apply(open_command())
    engine.step()
    return engine


def drain(engine: Engine) -> list[c.Event]:
    events: list[c.Event] = []
    while engine.has_work():
        events += engine.step()
    return events


def only_refusal(events: list[c.Event]) -> c.Refused:
    assert len(events) == 1
    assert isinstance(events[0], c.Refused)
    return events[0]


def test_repeat_while_running_is_ignored() -> None:
    engine = opened()
    verify = c.Verify(at(1), 3, (6, 7))
    assert engine.apply(verify) == []
    assert engine.apply(verify) == []
    verdicts = drain(engine)
    assert len(verdicts) == 1


def test_repeat_of_the_last_done_round_is_answered_from_store() -> None:
    engine = opened()
    verify = c.Verify(at(1), 3, (6, 7), want_features=True)
    engine.apply(verify)
    first = drain(engine)
    rows = engine.num_rows
    again = engine.apply(verify)
    assert engine.num_rows == rows
    assert again[0] == first[0]
    assert isinstance(again[1], c.Features)
    assert isinstance(first[1], c.Features)
    assert torch.equal(again[1].tensor, first[1].tensor)


def test_repeat_of_open_is_answered_from_store() -> None:
    engine = opened()
    events = engine.apply(open_command())
    assert isinstance(events[0], c.Verdict)
    assert events[0].tokens == (5,)


def test_repeat_of_an_older_round_is_dropped() -> None:
    engine = opened()
    for number, length in ((1, 3), (2, 4)):
        engine.apply(c.Verify(at(number), length))
        drain(engine)
    assert engine.apply(c.Verify(at(1), 3)) == []
    assert engine.apply(open_command()) == []


def test_a_done_run_is_one_stored_verdict() -> None:
    engine = opened()
    run = c.Run(at(1), 3, 4)
    engine.apply(run)
    streamed = [event for event in drain(engine) if isinstance(event, c.Verdict)]
    assert [verdict.done for verdict in streamed] == [False, False, False, True]
    (stored,) = engine.apply(run)
    assert isinstance(stored, c.Verdict)
    assert stored.tokens == tuple(token for verdict in streamed for token in verdict.tokens)
    assert stored.committed_length == 7
    assert stored.done


@pytest.mark.parametrize("number", [1, 0, 7])
def test_lower_epoch_is_stale(number: int) -> None:
    engine = opened()
    assert only_refusal(engine.apply(c.Verify(at(number, 4), 3))).code is RefusalCode.STALE_EPOCH
    assert only_refusal(engine.apply(open_command(4))).code is RefusalCode.STALE_EPOCH
    assert only_refusal(engine.apply(c.Close(at(0, 4)))).code is RefusalCode.STALE_EPOCH
    assert len(engine.requests) == 1


def test_nothing_returns_after_close() -> None:
    engine = opened()
    assert engine.apply(c.Close(at(0))) == [c.Closed(at(0))]
    for command in (open_command(5), open_command(3), c.Verify(at(1), 3), c.Run(at(1), 3, 2), c.Hold(at(0))):
        assert only_refusal(engine.apply(command)).code is RefusalCode.STALE_EPOCH
    assert engine.pool.num_available == 64
    assert engine.apply(open_command(6)) == []


def test_lost_close_is_healed_by_a_higher_open() -> None:
    engine = opened()
    engine.apply(open_command(6))
    drain(engine)
    assert len(engine.requests) == 1
    assert engine.requests.all()[0].epoch == 6
    engine.requests.check_integrity()


def test_close_is_idempotent_and_answers_unknown_ids() -> None:
    engine = table_engine(TABLE)
    assert engine.apply(c.Close(at(0))) == [c.Closed(at(0))]
    assert engine.apply(c.Close(at(0))) == [c.Closed(at(0))]


@pytest.mark.parametrize("kind", ["verify", "run", "fetch", "hold"])
def test_unknown_id_is_out_of_step_with_epoch_0(kind: str) -> None:
    commands: dict[str, c.Command] = {
        "verify": c.Verify(at(1), 3),
        "run": c.Run(at(1), 3, 2),
        "fetch": c.Fetch(at(1), 3),
        "hold": c.Hold(at(0)),
    }
    for engine in (table_engine(TABLE), opened()):
        command = commands[kind]
        if len(engine.requests):  # a known id with a higher epoch is unknown too
            address = c.Address(KEY_R, 9, command.address.round)
            command = type(command)(address, *list(vars(command).values())[1:])
        refusal = only_refusal(engine.apply(command))
        assert refusal.code is RefusalCode.OUT_OF_STEP
        assert refusal.held.epoch == 0
        assert refusal.address.epoch == command.address.epoch


@pytest.mark.parametrize(("number", "length"), [(1, 2), (1, 4), (2, 3), (9, 3)])
def test_gap_is_out_of_step_with_what_is_held(number: int, length: int) -> None:
    engine = opened()
    refusal = only_refusal(engine.apply(c.Verify(at(number), length, (6,))))
    assert refusal.code is RefusalCode.OUT_OF_STEP
    assert refusal.held == c.Held(5, 0, 3)
    assert not engine.has_work()


@pytest.mark.parametrize("length", range(2, 9))
def test_reopen_at_every_committed_length_goes_on_with_the_same_text(length: int) -> None:
    text = tuple((3 + i) % 8 for i in range(12))
    engine = opened()
    command = c.Open(at(0, 6), text[:length], 2, KEY, params(10), want_features=True)
    engine.apply(command)
    drain(engine)
    engine.apply(c.Run(at(1, 6), length + 1, 100))
    tokens = [token for event in drain(engine) if isinstance(event, c.Verdict) for token in event.tokens]
    assert (*text[: length + 1], *tokens) == text
    assert engine.requests.all()[0].num_generated == 10


def test_hold_ends_a_run_with_features() -> None:
    engine = opened()
    engine.apply(c.Run(at(1), 3, 10, want_features=True))
    first = engine.step()
    assert isinstance(first[0], c.Verdict)
    assert not first[0].done
    last, features = engine.apply(c.Hold(at(0)))
    assert isinstance(last, c.Verdict)
    assert (last.done, last.tokens, last.committed_length) == (True, (), 4)
    assert isinstance(features, c.Features)
    assert not engine.has_work()
    engine.apply(c.Verify(at(2), 4, (7,)))
    assert len(drain(engine)) == 1


def test_hold_does_nothing_without_a_run() -> None:
    engine = opened()
    assert engine.apply(c.Hold(at(0))) == []
    engine.apply(c.Verify(at(1), 3, (6,)))
    assert engine.apply(c.Hold(at(0))) == []
    assert len(drain(engine)) == 1


def test_fetch_commits_nothing_and_is_stored() -> None:
    engine = opened()
    (features,) = engine.apply(c.Fetch(at(1), 3))
    assert isinstance(features, c.Features)
    assert features.tensor[0].tolist() == [4.0, 1.0]  # token and position of the pivot
    (again,) = engine.apply(c.Fetch(at(1), 3))
    assert isinstance(again, c.Features)
    engine.apply(c.Verify(at(2), 3))
    assert len(drain(engine)) == 1


def test_close_while_a_round_waits_frees_it() -> None:
    engine = opened()
    engine.apply(c.Verify(at(1), 3, (6,)))
    engine.apply(c.Close(at(0)))
    assert not engine.has_work()
    assert engine.pool.num_available == 64


def test_a_coordinator_that_leaves_frees_its_requests_only() -> None:
    engine = opened()
    other = c.RequestKey("other", "r")
    engine.apply(c.Open(c.Address(other, 1, 0), PROMPT, 2, KEY, params(4)))
    drain(engine)
    engine.drop_coordinator("test")
    assert [sequence.key for sequence in engine.requests.all()] == [other]
    engine.requests.check_integrity()
    engine.apply(open_command(1))  # its closed epochs are forgotten with it
    assert engine.has_work()


def check_stale_epochs_are_refused() -> None:
    """For the wrong build that forgets closed epochs: a late Open must not come back to life."""
    engine = opened()
    engine.apply(c.Close(at(0)))
    engine.apply(open_command(5))
    assert not engine.has_work(), "a closed request was opened again"


def test_late_open_after_close() -> None:
    check_stale_epochs_are_refused()


def test_requests_repr_and_length() -> None:
    engine = opened()
    assert isinstance(engine.requests, Requests)
    assert len(engine.requests) == 1
    assert "1 requests" in repr(engine)
