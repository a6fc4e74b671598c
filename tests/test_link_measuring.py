"""Round trips from echoed stamps, between two ends whose clocks have nothing in common."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from coordinator.draft_link import DraftLink
from coordinator.gauges import Gauges, NamedLink
from coordinator.tuner.link_estimate import LinkEstimate
from protos import common_pb2, draft_pb2
from protos.stream import Stamps
from tests.coordinator_harness import DraftServer, asked, describe_target, serve_drafter, until
from tests.test_links import item, reply

_PEER_CLOCK_NS = 77_000_000_000_000


@dataclass
class Wire:
    """A link in simulated time: one way takes half the rtt and the bytes' share of the bandwidth."""

    rtt_seconds: float = 0.020
    bytes_per_second: float = float("inf")
    jitter_seconds: float = 0.0
    now_seconds: float = 5.0
    estimate: LinkEstimate = field(default_factory=LinkEstimate)
    random: random.Random = field(default_factory=lambda: random.Random(3))

    def __post_init__(self) -> None:
        self.near = Stamps(lambda: int(self.now_seconds * 1e9), self.estimate.note)
        self.far = Stamps(lambda: int(self.now_seconds * 1e9) + _PEER_CLOCK_NS)

    def exchange(self, held_seconds: float, question_bytes: int, *answer_bytes: int) -> None:
        """One question and its answers; the peer holds the question before the first of them."""
        question = common_pb2.Stamp()
        self.near.fill(question)
        self.near.note_sent(question, question_bytes)
        self._travel(question_bytes)
        self.far.note(question)
        self.now_seconds += held_seconds
        for num_bytes in answer_bytes:
            answer = common_pb2.Stamp()
            self.far.fill(answer)
            self._travel(num_bytes)
            self.near.note(answer, num_bytes)

    def _travel(self, num_bytes: int) -> None:
        jitter = self.random.uniform(0.0, self.jitter_seconds)
        self.now_seconds += self.rtt_seconds / 2 + num_bytes / self.bytes_per_second + jitter


@pytest.mark.parametrize("held_seconds", [0.0, 0.2, 7.0])
def test_what_the_peer_held_is_no_part_of_the_round_trip(held_seconds: float) -> None:
    wire = Wire()
    for _ in range(3):
        wire.exchange(held_seconds, 100, 100)
    assert wire.near.last_rtt_seconds == pytest.approx(0.020, abs=1e-6)
    assert wire.estimate.rtt_seconds == pytest.approx(0.020, abs=1e-6)
    assert wire.estimate.report().num_samples == 3


def test_a_second_answer_has_its_own_round_trip() -> None:
    """What lies between two answers to one question counts as held."""
    wire = Wire()
    wire.exchange(0.05, 100, 100, 100)
    assert wire.estimate.report().num_samples == 2
    assert wire.estimate.percentile(99) == pytest.approx(0.020, abs=1e-6)


def test_bandwidth_comes_from_messages_that_are_large_enough() -> None:
    wire = Wire(bytes_per_second=50e6, jitter_seconds=0.001)
    for _ in range(64):
        wire.exchange(0.01, 300, 200, 229_376)
    report = wire.estimate.report()
    assert report.bytes_per_second == pytest.approx(50e6, rel=0.1)
    assert report.rtt_p50_seconds == pytest.approx(0.021, abs=0.0005)
    assert wire.estimate.seconds(229_876) == pytest.approx(0.021 + 229_876 / 50e6, rel=0.05)


def test_sizes_that_hardly_differ_tell_no_bandwidth() -> None:
    """With small messages alone a slope would be one of jitter."""
    wire = Wire(jitter_seconds=0.002)
    for size in range(200):
        wire.exchange(0.0, 200 + 10 * (size % 7), 150 + size % 40)
    assert wire.estimate.report().bytes_per_second is None
    assert wire.estimate.seconds(200_000) == wire.estimate.rtt_seconds


def test_jitter_and_percentiles() -> None:
    wire = Wire(jitter_seconds=0.004)
    for _ in range(256):
        wire.exchange(0.0, 100, 100)
    report = wire.estimate.report()
    assert 0.0008 < report.jitter_seconds < 0.0032
    assert 0.020 <= report.rtt_p50_seconds < report.rtt_p90_seconds < report.rtt_p99_seconds <= 0.0281


def test_one_pause_of_a_process_is_not_a_slow_link() -> None:
    estimate = LinkEstimate()
    for number in range(64):
        estimate.note(3.0 if number == 40 else 0.001, 100)
    assert estimate.rtt_seconds == 0.001


def test_a_changed_link_is_followed() -> None:
    estimate = LinkEstimate()
    for _ in range(300):
        estimate.note(0.001, 100)
    for _ in range(200):
        estimate.note(0.050, 100)
    assert estimate.rtt_seconds == 0.050


def test_an_echo_of_a_forgotten_message_is_no_sample() -> None:
    """Its size is not known any more; the round trip is still told."""
    noted: list[int] = []
    stamps = Stamps(lambda: 10**9, lambda _, num_bytes: noted.append(num_bytes))
    stamps.note(common_pb2.Stamp(sent_ns=5, echo_sent_ns=7, echo_held_ns=1), 50)
    assert stamps.last_rtt_seconds == pytest.approx((10**9 - 8) / 1e9)
    assert noted == []


async def test_a_link_measures_its_rounds_but_not_the_making_of_its_connection() -> None:
    server = DraftServer(reply)
    async with serve_drafter(server) as address:
        link = DraftLink(address, "c", describe_target())
        link.start()
        assert await link.wait_settled(5)
        assert link.estimate.report().num_samples == 0
        first, second = item(1), item(2)
        second.features.data = bytes(100_000)
        await asked(link, first)
        await asked(link, second)
        assert link.estimate.report().num_samples == 2
        other = LinkEstimate()
        link.measure_into(other)
        await asked(link, draft_pb2.ProposeItem(request_id="r", epoch=5, round=3, k=2))
        assert (link.estimate.report().num_samples, other.report().num_samples) == (3, 1)
        names = [sample.name for metric in _gauges(link).collect() for sample in metric.samples]
        assert names.count("dlite_link_rtt_quantile_seconds") == 3
        assert "dlite_link_bytes_per_second" not in names
        server.outbox.close()
        await until(lambda: not link.is_connected)
        await link.stop()


def _gauges(link: DraftLink) -> Gauges:
    class Idle:
        num_used = 0
        num_waiting = 0

    return Gauges("m", Idle(), lambda: [NamedLink("draft", "a:1", link)])
