"""Wrong builds of the tuned rounds: cohorts, kept tails, blind rounds. See `wrong_builds`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from coordinator import drafting, tuned
from coordinator.cohorts import Cohorts
from coordinator.departures import Departures
from coordinator.prices import Prices
from coordinator.tuner import tuner
from coordinator.tuner.kinds import CycleKind
from coordinator.tuning import BlindProposals, Proposals
from protos import draft_pb2
from tests.wrong_builds import WrongBuild, everywhere

# Of q: proposals less likely than this are not worth a row, thinks the wrong build.
_DOUBTFUL = 0.3


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
    monkeypatch.setattr(tuner, "_SUMS_A_DECISION", 10**9)


def _cycles_behind_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Cohorts._note_cycle

    def wrong(self: Any, members: Any, now: float) -> None:
        self._drafted = tuple(member.did_size > 1 for member in members)
        right(self, members, now)

    monkeypatch.setattr(Cohorts, "_note_cycle", wrong)


async def _decides_at_once(self: Any, view: Any) -> None:
    self._enter(view)


def _searches_in_the_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    right = tuner.Tuner.decide

    def wrong(self: Any, requests: Any) -> Any:
        while self.think():
            pass
        return right(self, requests)

    monkeypatch.setattr(tuner.Tuner, "decide", wrong)


def _one_overhead_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    one_kind = classmethod(lambda cls, _num_runs, num_cohorts: cls(False, num_cohorts > 1))
    monkeypatch.setattr(CycleKind, "of", one_kind)


def _one_overhead_for_any_number_of_cohorts(monkeypatch: pytest.MonkeyPatch) -> None:
    one_kind = classmethod(lambda cls, num_runs, _num_cohorts: cls(num_runs > 0, False))
    monkeypatch.setattr(CycleKind, "of", one_kind)


def _unseen_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: Any) -> int:
        by_k = self._decision.costs.draft_seconds[-1]
        planned = self.plan.num_draft_tokens
        return max(k for k in range(planned, len(by_k)) if by_k[k] <= 1.02 * by_k[planned])

    monkeypatch.setattr(Prices, "num_draft_tokens", property(wrong))


_PACE = "tests/test_tuner_pace.py::"
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
        check=_PACE + "test_what_the_tables_have_to_learn_is_no_overhead",
    ),
    "way-in-the-overhead": WrongBuild(
        says="T_S takes in cycles behind ones of another kind, and so the way from a Run to a draft",
        apply=_cycles_behind_any_other,
        check=_PACE + "test_the_way_out_of_a_run_is_no_overhead",
    ),
    "unseen-is-free": WrongBuild(
        says="proposals beyond the plan are taken for free before their cost was seen, so it never is",
        apply=_unseen_is_free,
        check=_PACE + "test_longer_drafts_are_not_free_before_their_cost_was_seen",
    ),
    "tail-beside-others": WrongBuild(
        says="a kept tail is verified in a step of its own though others draft",
        apply=lambda monkeypatch: monkeypatch.setattr(Cohorts, "num_drafting", 1),
        check=_PACE + "test_beside_others_no_tail_is_verified",
    ),
    "one-by-one": WrongBuild(
        says="of requests that come with one message each is decided for as if it were the last to come",
        apply=lambda monkeypatch: monkeypatch.setattr(tuned.TunedSteering, "enter", _decides_at_once),
        check=_PACE + "test_whoever_comes_with_one_message_is_decided_for_together",
    ),
    "search-in-the-decision": WrongBuild(
        says="a round waits until the next plan is found",
        apply=_searches_in_the_decision,
        check=_PACE + "test_a_search_goes_on_between_decisions",
    ),
    "one-overhead-for-all": WrongBuild(
        says="T_S is one number for cycles in which some run and for those in which none does",
        apply=_one_overhead_for_all,
        check=_PACE + "test_mixed_cycles_keep_their_own_overhead",
    ),
    "one-overhead-for-any-number-of-cohorts": WrongBuild(
        says="T_S of one cohort, which delays everybody, is taken for that of several, which hide it",
        apply=_one_overhead_for_any_number_of_cohorts,
        check=_PACE + "test_cycles_of_several_cohorts_keep_their_own_overhead",
    ),
    "plan-by-age-alone": WrongBuild(
        says="a plan is made anew when it is old, however acceptance moves",
        apply=lambda monkeypatch: monkeypatch.setattr(tuner, "_DRIFT", 1e9),
        check=_PACE + "test_a_plan_is_made_anew_when_acceptance_moves",
    ),
    "whole-search-at-once": WrongBuild(
        says="a decision for many requests looks at every plan before it answers",
        apply=_whole_search_at_once,
        check="tests/test_tuner_search.py::test_no_decision_holds_up_the_event_loop",
        arguments={"num_requests": 64},
    ),
}
