"""Wrong builds of a pool of drafters, and of a swap of their weights. See `wrong_builds`."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest

from coordinator import draft_link, swap
from coordinator.draft_link import DraftLink
from coordinator.draft_pool import DraftPool
from coordinator.hedging import HedgeBudget
from coordinator.standing import Standing
from coordinator.swap_job import Swap
from coordinator.tuner import learning
from protos import draft_pb2
from tests.wrong_builds import WrongBuild, in_module


def _any_round_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_proposal(self: DraftLink, proposal: draft_pb2.Proposal) -> None:
        for key, question in list(self._pending.items()):
            if proposal.request_id == key[0]:
                del self._pending[key]
                question.answer(self, proposal)

    monkeypatch.setattr(DraftLink, "_on_proposal", on_proposal)


def _hedges_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HedgeBudget, "take", lambda _self: True)


def _lost_with_their_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DraftPool, "move", lambda _self, _question: None)


def _one_number(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Standing.__init__

    def init(self: Standing, address: str, _number: int, *rest: Any) -> None:
        right(self, address, 0, *rest)

    monkeypatch.setattr(Standing, "__init__", init)


def _last_batch_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "deque", lambda maxlen: deque(maxlen=1))


def _cohorts_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DraftPool, "_together", lambda self, _cohort: self._members.choose())


def _never_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swap.Comparison, "is_worse", lambda _self, _certain=0.0: False)


def _plain_tau(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens of a round, however many proposals were verified."""

    def tau(found: swap.Acceptance, _num_positions: int) -> tuple[float, float]:
        return found.num_tokens / found.num_rounds, 0.0

    monkeypatch.setattr(swap, "_tau", tau)


def _old_ones_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old drafters go before anybody knows whether the new ones serve."""
    right = Swap._change

    async def change(self: Swap, old: Sequence[str], new: Sequence[str], before: Any) -> Any:
        await self._operator.set_drafters(new)
        return await right(self, (), new, before)

    monkeypatch.setattr(Swap, "_change", change)


_POOL = "tests/test_draft_pool.py::"
_SWAP = "tests/test_swap.py::"

POOL_BUILDS: dict[str, WrongBuild] = {
    "any-round-will-do": WrongBuild(
        says="an answer is matched by the text alone: that of a lost hedge becomes the next round's",
        apply=_any_round_will_do,
        check=_POOL + "test_the_answer_of_a_lost_hedge_is_of_no_other_round",
    ),
    "hedges-without-end": WrongBuild(
        says="every slow question is asked twice: a slow hour of all replicas doubles their work",
        apply=_hedges_without_end,
        check=_POOL + "test_second_questions_are_a_small_share_however_slow_all_are",
    ),
    "unfit-drafter-asked": WrongBuild(
        says="nobody looks whether a replica of the pool fits to the target",
        apply=in_module(draft_link, "check_pairing", lambda _target, _drafter: None),
        check=_POOL + "test_a_replica_that_does_not_fit_gets_nothing_and_stops_nobody",
    ),
    "lost-with-their-replica": WrongBuild(
        says="what a lost replica held is not asked elsewhere",
        apply=_lost_with_their_replica,
        check=_POOL + "test_what_a_lost_replica_holds_is_asked_elsewhere_in_the_same_round",
    ),
    "cohorts-spread": WrongBuild(
        says="the questions of a cohort are spread, come back apart and are verified in steps apart",
        apply=_cohorts_spread,
        check="tests/test_pooled_rounds.py::test_more_drafters_do_not_slow_cohorts",
    ),
    "batches-of-one-number": WrongBuild(
        says="the tuner takes the batches of two drafters for one",
        apply=_one_number,
        check=_POOL + "test_batches_of_two_replicas_have_different_numbers",
    ),
    "last-batch-only": WrongBuild(
        says="a batch whose answers come between those of another drafter's is learned from again and again",
        apply=_last_batch_only,
        check=_POOL + "test_each_batch_teaches_once_however_answers_are_mixed",
    ),
    "swap-never-goes-back": WrongBuild(
        says="a swap keeps whatever drafter it was given",
        apply=_never_back,
        check=_SWAP + "test_a_worse_drafter_is_sent_back_by_itself_under_load",
    ),
    "swap-by-tokens": WrongBuild(
        says="a drafter of which the tuner verifies less seems worse",
        apply=_plain_tau,
        check=_SWAP + "test_a_swap_is_judged_by_acceptance_not_by_how_much_was_verified",
    ),
    "swap-old-ones-first": WrongBuild(
        says="the old drafters leave before the new ones serve",
        apply=_old_ones_first,
        check=_SWAP + "test_new_drafters_that_do_not_serve_change_nothing",
        arguments={"new": "gone", "why": "does not serve within 2 s"},
    ),
}
