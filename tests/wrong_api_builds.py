"""Wrong builds of the API: choices, readers, resuming, sessions, counters. See `wrong_builds`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from coordinator import admission, keys, turns
from coordinator.broadcast import Broadcast
from coordinator.generation import Generation
from coordinator.ledger import Block, Ledger
from coordinator.metrics import Metrics
from coordinator.resuming import Part, Progress
from coordinator.session_memory import SessionMemory
from coordinator.slots import Slots
from coordinator.tokenizer import Tokenizer
from protos import coordinator_pb2
from tests.wrong_builds import WrongBuild, everywhere


def _one_seed_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    right = keys.choice_keys

    def wrong(message: Any, num_choices: int, random_bytes: Any) -> tuple[bytes, ...]:
        return right(message, 1, random_bytes) * num_choices

    everywhere(right, wrong)(monkeypatch)


def _late_readers_get_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Broadcast.attach

    def wrong(self: Any) -> Any:
        said, self._said = self._said, []
        outlet = right(self)
        self._said = said
        return outlet

    monkeypatch.setattr(Broadcast, "attach", wrong)


def _any_body_attaches(monkeypatch: pytest.MonkeyPatch) -> None:
    everywhere(admission.body_digest, lambda _message: b"")(monkeypatch)


def _last_reader_leaves_it_running(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: Any, outlet: Any) -> None:
        self._broadcast.detach(outlet)

    monkeypatch.setattr(Generation, "detach", wrong)


def _places_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Slots, "_leave", lambda _self, _place: None)


def _resumed_without_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Progress._rest_of

    def wrong(self: Any, index: int) -> Any:
        request = right(self, index)
        del request.resume.token_ids[:]
        return request

    monkeypatch.setattr(Progress, "_rest_of", wrong)


def _broken_ends_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: Any, message: Any, part: Part) -> Iterator[coordinator_pb2.GenerateResponse]:
        if message.HasField("started") and self._started:
            return
        self._started = True
        self.num_messages += 1
        self.answer.add(message)
        yield message

    monkeypatch.setattr(Progress, "take", wrong)


def _tokenised_again(_turns: Any, text: str, tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode_rendered(text)


def _one_session_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    right = SessionMemory.remember
    monkeypatch.setattr(SessionMemory, "remember", lambda self, _session_id, turn: right(self, "b", turn))


def _blocks_are_not_trimmed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Block, "trimmed", lambda self: self)


def _a_series_for_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Metrics.observe

    def wrong(self: Any, finished: Any, seconds: float) -> None:
        right(self, finished, seconds)
        self.note_refused(str(seconds))

    monkeypatch.setattr(Metrics, "observe", wrong)


def _kernels_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "note_target", lambda _self, _target: None)


API_BUILDS: dict[str, WrongBuild] = {
    "one-seed-for-all-choices": WrongBuild(
        "every choice has the request's own seed",
        _one_seed_for_all,
        "tests/test_choices.py::test_three_choices_are_distinct_stable_and_those_of_their_seeds",
    ),
    "late-readers-get-the-rest": WrongBuild(
        "who attaches to a running request gets what comes from then on",
        _late_readers_get_the_rest,
        "tests/test_broadcast.py::test_a_late_reader_gets_the_same_answer_in_order",
    ),
    "any-body-attaches": WrongBuild(
        "a request with the id of a running one attaches, whatever it asks",
        _any_body_attaches,
        "tests/test_admission.py::test_another_body_is_another_request",
    ),
    "last-reader-leaves-it-running": WrongBuild(
        "a request whose last reader has gone runs on",
        _last_reader_leaves_it_running,
        "tests/test_admission.py::test_the_last_reader_that_goes_aborts_the_request",
    ),
    "places-are-kept": WrongBuild(
        "a request that ends keeps its place",
        _places_are_kept,
        "tests/test_slots.py::test_who_leaves_the_queue_makes_room_for_those_behind",
    ),
    "resumed-without-its-tokens": WrongBuild(
        "a broken text is asked for from the start",
        _resumed_without_its_tokens,
        "tests/test_client.py::test_a_resumed_request_brings_its_tokens",
    ),
    "broken-ends-are-passed-on": WrongBuild(
        "the end of a stream that broke is told as the end of the request",
        _broken_ends_are_passed_on,
        "tests/test_client.py::test_a_broken_end_is_held_back",
    ),
    "tokenised-again": WrongBuild(
        "a turn that comes back as text is tokenised again",
        everywhere(turns.continue_turns, _tokenised_again),
        "tests/test_turns.py::test_the_ids_of_prompt_and_answer_stay",
    ),
    "one-session-for-all": WrongBuild(
        "sessions see each other's turns",
        _one_session_for_all,
        "tests/test_turns.py::test_a_session_sees_its_own_turns_only",
    ),
    "blocks-are-not-trimmed": WrongBuild(
        "proposals behind the end of a text count as accepted",
        _blocks_are_not_trimmed,
        "tests/test_metrics.py::test_a_block_that_an_end_cuts_counts_what_stands",
    ),
    "a-series-for-each-request": WrongBuild(
        "a label has a value of its own for each request",
        _a_series_for_each_request,
        "tests/test_metrics.py::test_texts_add_no_series",
    ),
    "kernels-are-not-compared": WrongBuild(
        "a text that is opened again at a target with other kernels says nothing of it",
        _kernels_are_not_compared,
        "tests/test_ledger.py::test_a_text_that_moves_to_other_kernels_says_so",
        {"change": {"linear_kernel": "stock"}},
    ),
}
