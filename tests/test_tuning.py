"""The choices of a round, and whether a drafter belongs to a target."""

from __future__ import annotations

import inspect
from dataclasses import fields, replace
from typing import Any

import pytest
from pydantic import ValidationError

from coordinator.breaker import Breaker
from coordinator.config import CoordinatorConfig
from coordinator.coordinator import SOURCES
from coordinator.exchange import is_resend_due
from coordinator.pairing import check_pairing, pairing_warnings
from coordinator.tuning import (
    BlindProposals,
    DraftChoice,
    LookupChoice,
    Plan,
    RoundChoice,
    RoundView,
    RunChoice,
    SeenProposals,
    choose_draft,
    choose_verify,
)
from protos.common_pb2 import Describe
from protos.errors import ContractMismatch
from tests.coordinator_harness import describe_drafter, describe_target

MATCH = (5, 6, 7, 8, 9)
RUN, LOOK, DRAFT = RunChoice(20), LookupChoice(MATCH[:4]), DraftChoice(4)


def plan(source: str = "auto", k: int = 4, v: int = 5, speculates: bool = True) -> Plan:
    return Plan(speculates, SOURCES[source], k, v)


@pytest.mark.parametrize(
    ("source", "match", "most", "expected"),
    [
        ("auto", MATCH, 8, LOOK),
        ("auto", (), 8, DRAFT),
        ("auto", (), 0, RUN),
        ("drafter", MATCH, 8, DRAFT),
        ("drafter", MATCH, 0, RUN),
        ("drafter", (), 2, DraftChoice(2)),
        ("lookup", MATCH, 8, LOOK),
        ("lookup", (), 8, RUN),
        ("lookup_then_drafter", MATCH, 8, LOOK),
        ("lookup_then_drafter", (), 8, DRAFT),
    ],
)
def test_sources(source: str, match: tuple[int, ...], most: int, expected: RoundChoice) -> None:
    assert choose_draft(plan(source), RoundView(20, match, most)) == expected


def test_a_blind_round_fixes_v_before_it_asks() -> None:
    """Rejection: the choice says what will be verified, and the proposals carry no probability."""
    blind = replace(plan("drafter", k=6, v=4), is_blind=True)
    assert choose_draft(blind, RoundView(20, (), 8)) == DraftChoice(3, num_verified=3)
    assert choose_draft(blind, RoundView(3, (), 8)) == DraftChoice(2, num_verified=2)
    names = {field.name for field in fields(BlindProposals)}
    assert names == {"tokens", "laws"}
    annotation = inspect.get_annotations(choose_verify, eval_str=True)["proposals"]
    assert annotation is SeenProposals


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("remaining", [1, 2, 3, 5, 6])
def test_never_more_proposals_than_the_request_has_use_for(source: str, remaining: int) -> None:
    choice = choose_draft(plan(source), RoundView(remaining, MATCH, 8))
    if remaining == 1:
        assert choice == RunChoice(1)
    elif isinstance(choice, DraftChoice):
        assert choice.k == min(4, remaining - 1)
    else:
        assert isinstance(choice, LookupChoice)
        assert len(choice.proposals) == min(4, remaining - 1)


@pytest.mark.parametrize("off", [plan(k=0), plan(v=1), plan(speculates=False)])
def test_no_speculation_is_run(off: Plan) -> None:
    assert choose_draft(off, RoundView(20, MATCH, 8)) == RUN
    assert not off.uses_drafter


def test_verify_takes_v_minus_one() -> None:
    assert choose_verify(plan(k=5, v=3), 20, SeenProposals(MATCH)) == MATCH[:2]
    assert choose_verify(plan(k=5, v=6), 4, SeenProposals(MATCH)) == MATCH[:3]


@pytest.mark.parametrize(
    ("quiet", "silent", "due"),
    [(0.5, 9.0, False), (2.0, 2.0, True), (2.0, 0.1, False), (7.9, 0.1, False), (8.0, 0.1, True)],
)
def test_resend_waits_longer_while_the_target_shows_life(quiet: float, silent: float, due: bool) -> None:
    assert is_resend_due(quiet, silent, 2.0) is due


def test_the_breaker_lets_one_probe_through_and_opens_on_an_answer() -> None:
    now = [0.0]
    breaker = Breaker(lambda: now[0])
    assert breaker.allows
    breaker.note_failure()
    breaker.note_failure()
    assert not breaker.allows
    now[0] = Breaker.FIRST_SECONDS
    assert breaker.allows
    breaker.note_asked()
    assert not breaker.allows, "the probe is under way"
    breaker.note_answer()
    assert breaker.allows


def test_the_breaker_waits_longer_with_every_failure_but_not_for_ever() -> None:
    now = [0.0]
    breaker = Breaker(lambda: now[0])
    waits = []
    for _ in range(10):
        breaker.note_failure()
        started = now[0]
        while not breaker.allows:
            now[0] += Breaker.FIRST_SECONDS
        waits.append(now[0] - started)
    assert waits == sorted(waits)
    assert waits[-1] == Breaker.LONGEST_SECONDS


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("vocab_size", 99),
        ("hidden_size", 99),
        ("num_layers", 99),
        ("embedding_hash", "x"),
        ("noise_version", 2),
    ],
)
def test_a_drafter_that_does_not_fit_is_refused_by_field(name: str, value: Any) -> None:
    with pytest.raises(ContractMismatch) as caught:
        check_pairing(describe_target(), describe_drafter(**{name: value}))
    assert caught.value.field == name


def test_other_layers_are_refused_with_advice() -> None:
    drafter = describe_drafter()
    drafter.tapped_layers[:] = [0, 1]
    with pytest.raises(ContractMismatch, match="--tapped-layers 0,1") as caught:
        check_pairing(describe_target(), drafter)
    assert caught.value.field == "tapped_layers"


def test_another_fingerprint_is_only_a_warning() -> None:
    drafter = describe_drafter(trained_for_fingerprint="0" * 64)
    check_pairing(describe_target(), drafter)
    assert "trained for target 000000000000" in pairing_warnings(describe_target(), drafter)[0]
    assert pairing_warnings(describe_target(), describe_drafter()) == []


def test_a_replay_drafter_is_held_to_what_it_states() -> None:
    check_pairing(describe_target(), Describe(drafter_kind="replay", block_size=8))
    with pytest.raises(ContractMismatch):
        check_pairing(describe_target(), Describe(drafter_kind="replay", vocab_size=9))


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"target_address": "a:1", "draft_timeout_seconds": -1},
        {"target_address": "a:1", "resend_seconds": 0},
        {"target_address": "a:1", "verify_block_size": 0},
        {"target_address": "a:1", "num_draft_tokens": 3, "verify_block_size": 5},
        {"target_address": "a:1", "source": "oracle"},
        {"target_address": "a:1", "unknown": 1},
    ],
)
def test_the_configuration_is_checked(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        CoordinatorConfig(**values)
