"""The emulated link: what may pass when, in which order, and what the rounds see of it."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.config import CoordinatorConfig
from coordinator.draft_link import DraftLink
from coordinator.emulation import DelayLine, LinkShape, OneWay, SlowCarrier, parse_link
from coordinator.ports import Inbox, StreamLost
from coordinator.target_link import TargetLink
from protos.errors import InvalidRequest
from tests.coordinator_fakes import TableEngine
from tests.coordinator_harness import (
    DraftServer,
    asked,
    describe_target,
    serve_drafter,
    serve_target,
    until,
)
from tests.test_links import event_of, item, open_command, reply


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("20ms", LinkShape(0.020)),
        ("0ms", LinkShape(0.0)),
        ("1.5ms,250us", LinkShape(0.0015, 0.00025)),
        ("20ms, 2ms, 1gbit", LinkShape(0.020, 0.002, 125e6)),
        ("1s,0ms,800kbit", LinkShape(1.0, 0.0, 1e5)),
    ],
)
def test_a_link_is_written_as_round_trip_jitter_bandwidth(text: str, shape: LinkShape) -> None:
    read = parse_link(text)
    assert (read.rtt_seconds, read.jitter_seconds) == pytest.approx((shape.rtt_seconds, shape.jitter_seconds))
    assert read.bytes_per_second == (
        None if shape.bytes_per_second is None else pytest.approx(shape.bytes_per_second)
    )


@pytest.mark.parametrize(
    "text", ["", "20", "ms", "-1ms", "nan", "20ms,1gbit", "1ms,1ms,0mbit", "1ms,2ms,3mbit,4"]
)
def test_what_is_no_link_is_refused_at_the_start(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_link(text)
    with pytest.raises(InvalidRequest, match="emulate_draft_link"):
        CoordinatorConfig.load(None, target_address="a:1", emulate_draft_link=text)


def test_a_message_arrives_after_half_the_round_trip_and_its_bytes() -> None:
    way = OneWay(LinkShape(0.020, 0.0, 1e6), lambda: 0.0)
    assert way.arrival(5.0, 0) == pytest.approx(5.010)
    assert way.arrival(6.0, 50_000) == pytest.approx(6.060)
    assert way.arrival(6.0, 50_000) == pytest.approx(6.110), "the line carries one message at a time"
    assert way.arrival(6.2, 0) == pytest.approx(6.210), "an idle line owes nothing"


def test_jitter_stays_within_its_share() -> None:
    rng = random.Random(2)
    way = OneWay(LinkShape(0.020, 0.004), rng.random)
    late = [way.arrival(float(number), 0) - number for number in range(1, 500)]
    assert min(late) >= 0.010
    assert max(late) <= 0.012
    assert max(late) - min(late) > 0.0015


@given(
    st.lists(st.tuples(st.floats(0, 0.01), st.integers(0, 10**6)), min_size=1, max_size=40),
    st.integers(0, 2**32),
)
def test_messages_never_overtake(messages: list[tuple[float, int]], seed: int) -> None:
    way = OneWay(LinkShape(0.020, 0.050, 1e8), random.Random(seed).random)
    now, before = 0.0, 0.0
    for pause, num_bytes in messages:
        now += pause
        arrival = way.arrival(now, num_bytes)
        assert arrival >= before
        assert arrival >= now + 0.010 + num_bytes / 1e8 - 1e-9
        before = arrival


async def test_a_line_hands_everything_over_in_order_and_no_earlier() -> None:
    arrived: list[tuple[float, int]] = []
    way = OneWay(LinkShape(0.010, 0.010), random.Random(1).random)
    line = DelayLine(way, lambda number: arrived.append((time.monotonic(), number)))
    started = time.monotonic()
    for number in range(100):
        line.put(number)
    assert time.monotonic() - started < 1.0, "nothing that is put in waits"
    await until(lambda: len(arrived) == 100)
    assert [number for _, number in arrived] == list(range(100))
    assert arrived[0][0] - started >= 0.005
    await line.close()


async def test_closing_a_line_forgets_what_is_on_its_way() -> None:
    arrived: list[Any] = []
    line = DelayLine(OneWay(LinkShape(600.0), random.random), arrived.append)
    line.put(b"x")
    await asyncio.wait_for(line.close(), 5)
    assert arrived == []


class Call:
    """A call whose peer echoes; `fails` makes reading raise."""

    def __init__(self, fails: bool = False) -> None:
        self.written: list[bytes] = []
        self.is_half_closed = False
        self._fails = fails
        self._echo: asyncio.Queue[Any] = asyncio.Queue()

    async def write(self, data: bytes) -> None:
        if self._fails:
            raise ConnectionError("gone")
        self.written.append(data)
        self._echo.put_nowait(data)

    async def read(self) -> Any:
        if self._fails:
            raise ConnectionError("gone")
        return await self._echo.get()

    async def done_writing(self) -> None:
        self.is_half_closed = True
        self._echo.put_nowait(None)


async def test_a_half_close_waits_for_what_has_not_left_yet() -> None:
    call = Call()
    carrier = SlowCarrier(call, LinkShape(0.010), lambda: 0.0)
    for number in range(20):
        await carrier.write(b"%d" % number)
    await carrier.done_writing()
    assert (len(call.written), call.is_half_closed) == (20, True)
    answers = [await carrier.read() for _ in range(21)]
    assert answers == [*(b"%d" % number for number in range(20)), None]
    await carrier.close()


async def test_an_error_of_the_call_reaches_reader_and_writer() -> None:
    carrier = SlowCarrier(Call(fails=True), LinkShape(0.0), lambda: 0.0)
    with pytest.raises(ConnectionError):
        await carrier.read()
    await carrier.write(b"lost")
    await carrier.done_writing()
    with pytest.raises(ConnectionError):
        await carrier.write(b"x")
    await carrier.close()


async def test_the_drafters_link_measures_the_emulated_distance() -> None:
    async with serve_drafter(DraftServer(reply)) as address:
        link = DraftLink(address, "c", describe_target(), emulated=LinkShape(0.030))
        link.start()
        assert await link.wait_settled(5)
        for number in range(1, 6):
            await asked(link, item(number))
        assert link.estimate.report().num_samples == 5
        assert link.estimate.percentile(1) >= 0.030
        await link.stop()


async def test_a_slow_target_link_loses_nothing_and_comes_back() -> None:
    async with serve_target(TableEngine()) as (address, server):
        link = TargetLink(address, "c", 5.0, lambda _: None, emulated=LinkShape(0.010, 0.005, 1e7))
        link.start()
        assert await link.wait_connected(5)
        inbox = Inbox()
        link.attach("r", inbox)
        link.send([open_command()])
        assert (await event_of(inbox)).HasField("verdict")
        assert link.estimate.rtt_seconds >= 0.010
        await server.cut()
        assert isinstance(await inbox.get(5), StreamLost)
        assert await link.wait_connected(5)
        await link.stop()
    assert server.ended[-1] == "shutting down", "the end frame is not lost on the slow link"
