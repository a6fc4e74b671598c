"""Wrong builds of measured and emulated links. See `wrong_builds`."""

from __future__ import annotations

import itertools
import statistics
from typing import Any

import pytest

from coordinator.draft_link import DraftLink
from coordinator.emulation import OneWay, SlowCarrier
from coordinator.tuner import link_estimate
from coordinator.tuner.link_estimate import LinkEstimate
from deploy.bench import fakes
from protos import common_pb2
from protos.stream import Stamps
from target_service.engine_thread import EngineThread
from tests.wrong_builds import WrongBuild, in_module


def _hold_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Stamps.note

    def note(self: Stamps, stamp: common_pb2.Stamp, num_bytes: int = 0) -> None:
        bare = common_pb2.Stamp(sent_ns=stamp.sent_ns, echo_sent_ns=stamp.echo_sent_ns)
        right(self, bare, num_bytes)

    monkeypatch.setattr(Stamps, "note", note)


def _mean_round_trip(monkeypatch: pytest.MonkeyPatch) -> None:
    def rtt_seconds(self: LinkEstimate) -> float:
        return statistics.fmean(trip.seconds for trip in self._round_trips)

    monkeypatch.setattr(LinkEstimate, "rtt_seconds", property(rtt_seconds))


def _hello_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_round_trip(self: DraftLink, rtt_seconds: float, num_bytes: int) -> None:
        self.estimate.note(rtt_seconds, num_bytes)

    monkeypatch.setattr(DraftLink, "on_round_trip", on_round_trip)


def _overtaking(monkeypatch: pytest.MonkeyPatch) -> None:
    def arrival(self: OneWay, now: float, num_bytes: int) -> float:
        late = (self._shape.rtt_seconds + self._draw() * self._shape.jitter_seconds) / 2
        return now + late + num_bytes / (self._shape.bytes_per_second or float("inf"))

    monkeypatch.setattr(OneWay, "arrival", arrival)


def _one_way_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(self: SlowCarrier) -> Any:
        return await self._call.read()

    async def idle(self: SlowCarrier) -> None:
        """The call is read at once."""

    monkeypatch.setattr(SlowCarrier, "read", read)
    monkeypatch.setattr(SlowCarrier, "_read_all", idle)


def _coins_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    coins = itertools.count()
    monkeypatch.setattr(fakes, "_coin", lambda request_id, position: (next(coins) * 0.61803) % 1.0)


def _one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    right = EngineThread.post

    def post(self: EngineThread, *items: Any) -> None:
        for item in items:
            right(self, item)

    monkeypatch.setattr(EngineThread, "post", post)


_MEASURING = "tests/test_link_measuring.py::"
_EMULATION = "tests/test_emulation.py::"

LINK_BUILDS: dict[str, WrongBuild] = {
    "peers-compute-is-distance": WrongBuild(
        "what the peer held counts as round trip",
        _hold_is_counted,
        _MEASURING + "test_what_the_peer_held_is_no_part_of_the_round_trip",
        {"held_seconds": 0.2},
    ),
    "bandwidth-of-jitter": WrongBuild(
        "a slope over sizes that hardly differ is taken for bandwidth",
        in_module(link_estimate, "_TELLING_BYTES", 1),
        _MEASURING + "test_sizes_that_hardly_differ_tell_no_bandwidth",
    ),
    "mean-round-trip": WrongBuild(
        "one pause of a process makes the link slow",
        _mean_round_trip,
        _MEASURING + "test_one_pause_of_a_process_is_not_a_slow_link",
    ),
    "connecting-is-distance": WrongBuild(
        "the making of a connection counts as a round trip",
        _hello_is_counted,
        _MEASURING + "test_a_link_measures_its_rounds_but_not_the_making_of_its_connection",
    ),
    "messages-overtake": WrongBuild(
        "an emulated link with jitter changes the order of messages",
        _overtaking,
        _EMULATION + "test_messages_never_overtake",
    ),
    "slow-one-way": WrongBuild(
        "the emulated link delays only what leaves",
        _one_way_only,
        _EMULATION + "test_the_drafters_link_measures_the_emulated_distance",
    ),
    "cohort-in-pieces": WrongBuild(
        "an idle engine begins a step after the first command of a message",
        _one_by_one,
        "tests/test_engine_messages.py::test_commands_of_one_message_are_one_step_of_an_idle_engine",
    ),
    "luck-by-arm": WrongBuild(
        "what the fake drafter knows depends on how often it is asked",
        _coins_in_turn,
        "tests/test_fakes_with_costs.py::test_what_the_drafter_knows_is_a_matter_of_the_text_alone",
    ),
}
