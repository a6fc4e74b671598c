"""Wrong builds of traces, replay, the load test and its report. See `wrong_builds`."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.loadtest import rounds as loadtest_rounds
from coordinator.loadtest.rounds import PointRounds
from coordinator.loadtest.samples import Recording, Sample
from coordinator.loadtest.warmth import Warmth, warmth
from coordinator.trace import replay as replaying
from coordinator.trace import snapshot as snapshots
from coordinator.trace.writer import Waiting
from tests.wrong_builds import WrongBuild, everywhere, in_module

_TRACE = "tests/test_trace.py::"
_REPLAY = "tests/test_trace_replay.py::"
_LOADTEST = "tests/test_loadtest.py::"


def _clock_starts_at_the_sending(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Sample.__init__

    def wrong(self: Sample, *args: Any, **values: Any) -> None:
        values["scheduled_seconds"] = values["started_seconds"]
        right(self, *args, **values)

    monkeypatch.setattr(Sample, "__init__", wrong)


def _empty_streams_are_good(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Recording._failure

    def wrong(self: Recording, error: Any) -> str:
        reason = right(self, error)
        return "" if reason.startswith(("EMPTY", "CUT")) else reason

    monkeypatch.setattr(Recording, "_failure", wrong)


def _first_message_is_the_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Recording.add

    def wrong(self: Recording, message: Any, now: float) -> None:
        right(self, message, min(now, 0.010))

    monkeypatch.setattr(Recording, "add", wrong)


def _cancelled_requests_have_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Recording.end

    def wrong(self: Recording, now: float, error: Any = None, cancelled: bool = False) -> Sample:
        return right(self, now, error)

    monkeypatch.setattr(Recording, "end", wrong)


def _history_without_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    from coordinator.loadtest.workload import Conversation

    monkeypatch.setattr(Conversation, "add_answer", lambda self, sample: None)


def _never_warm(samples: Any, right: Any = warmth) -> Warmth:
    found = right(samples)
    return Warmth(found.num_cached, found.num_prompt_tokens, False)


def _slow_writers_cost_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Waiting, "put", lambda self, record: self._records.append(record))


def _fields_by_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    from coordinator.trace import format as trace_format

    right = trace_format._record

    def wrong(names: Any, values: Any) -> Any:
        return right(trace_format.FIELDS[: len(values)], values[: len(trace_format.FIELDS)])

    monkeypatch.setattr(trace_format, "_record", wrong)


def _all_rounds_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replayed tuner has seen the whole trace before its first choice."""
    right = replaying.groups

    def wrong(records: Any) -> Any:
        found = right(records)
        late = max(record.ended for record in records)
        for group in found:
            monkeypatch.setattr(type(group), "start", property(lambda self: late), raising=False)
        return found

    monkeypatch.setattr(replaying, "groups", wrong)


def _a_round_is_all_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from coordinator.trace.activity import Activity

    right = Activity.running
    monkeypatch.setattr(Activity, "running", lambda self, instant: right(self, instant)[:1])


def _every_round_is_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaying._Teacher, "_is_new", lambda self, service, number: True)


def _acceptance_of_all_verified(records: Any) -> tuple[float | None, ...]:
    """Positions that were not reached count as missed."""
    found = [record for record in records if record.num_verified]
    most = max((record.num_verified for record in found), default=0)
    return tuple(
        sum(record.num_accepted >= position for record in found)
        / sum(record.num_verified >= position for record in found)
        for position in range(1, most + 1)
    )


def _a_run_has_no_time(records: Any, begin: float, end: float, num_bins: int) -> Any:
    drafts = [record for record in records if record.num_verified]
    return _RIGHT_BINS(drafts, begin, end, num_bins)


_RIGHT_BINS = loadtest_rounds.bins


def _arms_are_mixed(records: Any, run_id: str, categories: Any, about: Any) -> PointRounds:
    found = tuple(record for record in records if run_id in record.request_id)
    return PointRounds(found, (), {}, about)


def _since_the_start(before: Any, after: Any, right: Any = snapshots.snapshot) -> Any:
    return right(type(before)(seconds=before.seconds), after)


REPORT_BUILDS = {
    "clock-from-the-sending": WrongBuild(
        "latency counts from the sending, so that a frozen server hides behind those who waited",
        _clock_starts_at_the_sending,
        _LOADTEST + "test_a_frozen_server_shows_in_the_tail",
    ),
    "empty-streams-are-good": WrongBuild(
        "empty and cut streams count as successes",
        _empty_streams_are_good,
        _LOADTEST + "test_failures_are_counted_apart",
    ),
    "ttft-of-the-first-message": WrongBuild(
        "TTFT is the first message, whether it has tokens or not",
        _first_message_is_the_first_token,
        _LOADTEST + "test_ttft_is_the_first_message_with_tokens",
    ),
    "cancels-have-failed": WrongBuild(
        "requests that the client left count as failed",
        _cancelled_requests_have_failed,
        _LOADTEST + "test_cancelled_requests_are_neither_good_nor_failed",
    ),
    "history-without-answers": WrongBuild(
        "an agent's history has its own turns only",
        _history_without_answers,
        _LOADTEST + "test_a_sessions_history_grows_by_its_answers",
    ),
    "warm-caches-are-not-told": WrongBuild(
        "a second run that found everything cached says nothing of it",
        everywhere(warmth, _never_warm),
        _LOADTEST + "test_a_warm_prefix_cache_is_flagged",
    ),
    "slow-writers-cost-memory": WrongBuild(
        "records wait without a bound when the disk is slow",
        _slow_writers_cost_memory,
        _TRACE + "test_what_does_not_fit_is_counted",
    ),
    "fields-by-their-place": WrongBuild(
        "a trace of another version is read by the order of its fields",
        _fields_by_their_place,
        _TRACE + "test_fields_of_other_versions_are_skipped_or_take_their_defaults",
    ),
    "replay-knows-the-future": WrongBuild(
        "the replayed tuner is told of rounds that had not ended yet",
        _all_rounds_are_told_at_once,
        _REPLAY + "test_a_point_knows_nothing_of_what_follows",
    ),
    "replay-plans-for-one": WrongBuild(
        "the replayed tuner plans for one request, whoever else ran",
        _a_round_is_all_that_runs,
        _REPLAY + "test_running_texts_count_as_requests",
    ),
    "replay-counts-steps-twice": WrongBuild(
        "a step that several requests shared is learned once for each of them",
        _every_round_is_a_step,
        _REPLAY + "test_a_step_that_many_shared_is_learned_once",
    ),
    "positions-not-reached-are-missed": WrongBuild(
        "acceptance by position counts what was verified but not reached as missed",
        in_module(loadtest_rounds, "by_position", _acceptance_of_all_verified),
        "tests/test_loadtest_rounds.py::test_acceptance_by_position_is_of_what_was_reached",
    ),
    "runs-take-no-time": WrongBuild(
        "the mean v over time leaves out plain decoding",
        in_module(loadtest_rounds, "bins", _a_run_has_no_time),
        "tests/test_loadtest_rounds.py::test_bins_weigh_by_time",
    ),
    "arms-are-mixed": WrongBuild(
        "rounds of the plain arm are shown among the speculative ones",
        in_module(loadtest_rounds, "rounds_of_point", _arms_are_mixed),
        "tests/test_loadtest_rounds.py::test_rounds_are_found_by_their_request",
    ),
    "top-since-the-start": WrongBuild(
        "dlite top shows sums since the start as if they were of the last second",
        everywhere(snapshots.snapshot, _since_the_start),
        "tests/test_top.py::test_a_snapshot_is_the_difference_of_sums",
    ),
}
