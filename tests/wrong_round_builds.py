"""Wrong builds of the tuned rounds: cohorts, kept tails, blind rounds. See `wrong_builds`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from coordinator import drafting, tuned
from coordinator.departures import Departures
from coordinator.tuner import tuner
from coordinator.tuning import BlindProposals, Proposals
from protos import draft_pb2
from tests.wrong_builds import WrongBuild, everywhere

# Of q: proposals less likely than this are not worth a row, thinks the wrong build.
_DOUBTFUL = 0.2


def _looks_at_blind_proposals(monkeypatch: pytest.MonkeyPatch) -> None:
    """v of a rejection round by the drafter's own probability of what it proposed."""
    right = drafting.drafted

    def wrong(proposal: draft_pb2.Proposal, num_verified: int | None) -> Proposals:
        found = right(proposal, num_verified)
        if not isinstance(found, BlindProposals):
            return found
        sure = 0
        for token, law in zip(found.tokens, found.laws, strict=True):
            if law.probabilities[list(law.token_ids).index(token)] < _DOUBTFUL:
                break
            sure += 1
        return found.first(sure)

    everywhere(right, wrong)(monkeypatch)


def _tail_whatever_the_anchor(
    proposals: Sequence[int], num_verified: int, num_accepted: int, _anchor: int
) -> tuple[int, ...]:
    if num_accepted < num_verified or num_verified >= len(proposals):
        return ()
    return tuple(proposals[num_verified + 1 :])


def _tail_after_a_miss(
    proposals: Sequence[int], num_verified: int, _num_accepted: int, _anchor: int
) -> tuple[int, ...]:
    return tuple(proposals[num_verified + 1 :])


def _last_come_first_served(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Departures._depart

    def wrong(self: Any, pace: Any, now: float) -> None:
        self._waiting.reverse()
        right(self, pace, now)
        self._waiting.reverse()

    monkeypatch.setattr(Departures, "_depart", wrong)


def _everybody_waits_for_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """All cohorts must be back before one leaves."""
    right = Departures._check

    def wrong(self: Any) -> None:
        if self._under_way:
            self._is_check_due = False
            self._check_after(0.001)
            return
        right(self)

    monkeypatch.setattr(Departures, "_check", wrong)


def _late_ones_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from coordinator import departures

    monkeypatch.setattr(departures, "_LATE_CYCLES", 1e6)


def _overhead_with_what_tables_have_to_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.tuner.cost_table.CostTable.measured_seconds", _shrunk)


def _shrunk(self: Any, rows: int, extra: float = 0.0) -> float:
    seconds: float = self.seconds(rows, extra)
    return seconds


def _whole_search_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "_RATES_A_DECISION", 10**9)


_TAIL = "tests/test_rounds_tail.py::test_no_tail_behind_another_text"
_COHORTS = "tests/test_cohorts.py::"

ROUND_BUILDS: dict[str, WrongBuild] = {
    "blind-round-looks": WrongBuild(
        says="a rejection round verifies as many proposals as the drafter was sure of",
        apply=_looks_at_blind_proposals,
        check="tests/test_rounds_law.py::test_rejection_follows_its_law_under_the_tuner",
    ),
    "tail-of-another-text": WrongBuild(
        says="a tail is used although the new anchor is not d_v",
        apply=lambda monkeypatch: monkeypatch.setattr(tuned, "kept_tail", _tail_whatever_the_anchor),
        check=_TAIL,
        arguments={"wrong_at": 4},
    ),
    "tail-after-a-miss": WrongBuild(
        says="a tail is used although a verified proposal before it was not accepted",
        apply=lambda monkeypatch: monkeypatch.setattr(tuned, "kept_tail", _tail_after_a_miss),
        check=_TAIL,
        arguments={"wrong_at": 4},
    ),
    "last-come-first-served": WrongBuild(
        says="of those who wait for a cohort the latest leave first",
        apply=_last_come_first_served,
        check=_COHORTS + "test_first_come_first_served_whatever_the_speeds",
        arguments={"num_cohorts": 2},
    ),
    "all-cohorts-wait": WrongBuild(
        says="a cohort waits for the others, not only for its own members",
        apply=_everybody_waits_for_everybody,
        check=_COHORTS + "test_nobody_waits_for_a_slower_cohort",
    ),
    "late-ones-are-waited-for": WrongBuild(
        says="a cohort waits for a member that does not come back",
        apply=_late_ones_are_waited_for,
        check=_COHORTS + "test_a_late_one_holds_up_its_cohort_for_two_cycles_at_most",
    ),
    "overhead-with-what-tables-have-to-learn": WrongBuild(
        says="T_S holds what the cost tables do not know yet, so that speculation is left for good",
        apply=_overhead_with_what_tables_have_to_learn,
        check="tests/test_rounds_tail.py::test_a_tail_is_verified_without_asking_the_drafter",
    ),
    "whole-search-at-once": WrongBuild(
        says="a decision for many requests looks at every plan before it answers",
        apply=_whole_search_at_once,
        check="tests/test_tuner_search.py::test_no_decision_holds_up_the_event_loop",
        arguments={"num_requests": 64},
    ),
}
