"""Wrong builds of a pool of targets. See `wrong_builds`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from coordinator import rounds, target_members, target_pool
from coordinator.affinity import Affinity
from coordinator.request import Request
from coordinator.session import Session
from coordinator.target_link import TargetLink
from coordinator.target_pool import TargetPool
from coordinator.target_replica import TargetReplica
from protos import common_pb2, target_pb2
from tests.wrong_builds import WrongBuild, in_module


def _prompt_only(monkeypatch: pytest.MonkeyPatch) -> None:
    right = rounds.open_commands

    def wrong(request: Request, session: Session, want_features: bool) -> tuple[target_pb2.Command, ...]:
        commands = right(request, session, want_features)
        del commands[-1].open.token_ids[session.num_prompt_tokens :]
        return commands

    monkeypatch.setattr(rounds, "open_commands", wrong)


def _new_key_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    right = rounds.open_commands

    def wrong(request: Request, session: Session, want_features: bool) -> tuple[target_pb2.Command, ...]:
        commands = right(request, session, want_features)
        if len(session.tokens) > len(request.token_ids):
            commands[-1].open.sampling_key = bytes(16)
        return commands

    monkeypatch.setattr(rounds, "open_commands", wrong)


def _no_favourite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Affinity, "favourite", lambda *_: None)


def _always_the_favourite(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(loads: dict[str, tuple[int, int]], favourite: str | None) -> str:
        return favourite if favourite in loads else min(loads, key=lambda name: loads[name])

    monkeypatch.setattr(target_pool, "choose", choose)


def _all_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of a lost target follow their session or prompt, one after the other, to one target."""
    right = TargetPool._choose

    def choose(
        self: TargetPool, request: Request, candidates: Sequence[TargetReplica], is_new: bool
    ) -> TargetReplica:
        return right(self, request, candidates, True)

    monkeypatch.setattr(TargetPool, "_choose", choose)


def _drains_and_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TargetReplica, "is_serving", property(lambda self: self.port.is_connected))


def _cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that is taken out goes at once, and its texts with it."""

    async def drain(self: Any, replica: TargetReplica) -> None:
        del self._replicas[replica.address]
        if replica.stream is not None:
            await replica.stream.stop()

    monkeypatch.setattr(target_members.TargetMembers, "_drain", drain)


def _believes_a_welcome(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_welcome(self: TargetLink, describe: common_pb2.Describe) -> None:
        self._check(describe)
        self._describe = describe
        self._connect()

    monkeypatch.setattr(TargetLink, "_on_welcome", on_welcome)


TARGET_BUILDS: dict[str, WrongBuild] = {
    "reopened-with-its-prompt-only": WrongBuild(
        says="a text that goes on elsewhere has forgotten what was committed",
        apply=_prompt_only,
        check="tests/test_target_pool.py::test_texts_of_a_lost_target_go_on_elsewhere_spread_out",
        arguments={"num_right": None},
    ),
    "reopened-with-another-key": WrongBuild(
        says="a text that goes on elsewhere draws with another key",
        apply=_new_key_elsewhere,
        check="tests/test_failover_exact.py::test_the_text_is_the_same_wherever_its_targets_are_lost",
        arguments={"temperature": 1.0, "v": 0},
    ),
    "no-affinity": WrongBuild(
        says="a turn of a session goes where there is least to do, not where its pages are",
        apply=_no_favourite,
        check="tests/test_target_pool.py::test_turns_of_a_session_go_where_the_session_is",
    ),
    "no-affinity-real-pages": WrongBuild(
        says="the same, with real pages: every turn computes its history anew at the other target",
        apply=_no_favourite,
        check="tests/test_failover_exact.py::test_later_turns_find_the_pages_of_earlier_ones_at_their_target",
    ),
    "affinity-whatever-it-costs": WrongBuild(
        says="a text waits behind all others of its session while other targets idle",
        apply=_always_the_favourite,
        check="tests/test_target_pool.py::test_a_favourite_with_much_more_to_do_is_passed_over",
    ),
    "all-reopened-at-one": WrongBuild(
        says="the texts of a lost target go on at one other target, all of them",
        apply=_all_to_one,
        check="tests/test_target_pool.py::test_texts_of_a_lost_target_go_on_elsewhere_spread_out",
        arguments={"num_right": None},
    ),
    "drains-and-takes": WrongBuild(
        says="a target that drains still gets new texts",
        apply=_drains_and_takes,
        check="tests/test_target_drain.py::"
        "test_a_target_that_drains_gets_no_new_text_and_is_gone_when_its_texts_have_ended",
    ),
    "taken-out-with-its-texts": WrongBuild(
        says="a target is taken out while texts run there, and while no other serves",
        apply=_cut_off,
        check="tests/test_target_drain.py::"
        "test_a_target_that_drains_gets_no_new_text_and_is_gone_when_its_texts_have_ended",
    ),
    "a-welcome-is-a-sign-of-life": WrongBuild(
        says="a target that hangs counts as there as soon as it takes a stream, and gets texts again",
        apply=_believes_a_welcome,
        check="tests/test_targets_served.py::"
        "test_a_target_that_hangs_loses_its_texts_to_another_and_gets_none_until_it_lives",
    ),
    "any-model-will-do": WrongBuild(
        says="a target with another model joins, and texts change in the middle",
        apply=in_module(target_members, "check_same_model", lambda _first, _other: None),
        check="tests/test_target_pool.py::test_another_model_is_refused_and_the_others_go_on",
    ),
}
