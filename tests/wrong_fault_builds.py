"""Wrong builds of what keeps a text whole when messages are lost or double. See `wrong_builds`."""

from __future__ import annotations

import pytest

from coordinator import exchange, pairing
from coordinator.session import Commit, Outcome, Session
from protos import target_pb2
from tests.wrong_builds import WrongBuild, everywhere


def _committed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Session.commit

    def commit(self: Session, verdict: target_pb2.Verdict) -> Commit:
        taken = right(self, verdict)
        if taken.outcome is Outcome.IGNORED and verdict.epoch == self.epoch and verdict.tokens:
            self.tokens.extend(verdict.tokens)
            return Commit(Outcome.TAKEN, tuple(verdict.tokens), verdict.done)
        return taken

    monkeypatch.setattr(Session, "commit", commit)


FAULT_BUILDS: dict[str, WrongBuild] = {
    "verdicts-committed-twice": WrongBuild(
        says="an answer that comes twice is committed twice",
        apply=_committed_twice,
        check="tests/test_rounds.py::test_lost_and_repeated_answers",
        arguments={"kind": "verdict", "fault_at": 3, "repeat": 2, "source": "drafter"},
    ),
    "never-sent-again": WrongBuild(
        says="a round whose command was lost waits for ever",
        apply=everywhere(exchange.is_resend_due, lambda *_: False),
        check="tests/test_faults.py::test_a_lost_command_is_sent_again",
    ),
    "any-major-will-do": WrongBuild(
        says="a service of another major version is taken for one of ours",
        apply=everywhere(pairing.check_protocol, lambda *_: None),
        check="tests/test_versions.py::test_a_coordinator_refuses_a_service_of_another_major_version",
    ),
}
