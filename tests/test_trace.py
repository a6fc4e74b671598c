"""Traces of rounds: what is written is read, also from a file that ends anywhere."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.trace.feed import MAX_LISTENERS, RoundFeed
from coordinator.trace.format import FIELDS, Decoder, Header, Lost, pack_header, pack_records
from coordinator.trace.reader import read_trace
from coordinator.trace.record import RoundParts, RoundRecord, RoundSource, Share, Step
from coordinator.trace.writer import TraceWriter, Waiting
from protos import coordinator_pb2 as pb
from protos.common_pb2 import FINISH_REASON_ERROR, FINISH_REASON_STOP
from protos.errors import Busy, InvalidRequest

HEADER = Header(1.5e9, 10.0, {"model": "tiny", "drafter_layers": 2})
PARTS = RoundParts(0.002, 0.010, 0.001, 0.0005, 0.0001, 0.0004)


def record(**changes: Any) -> RoundRecord:
    values: dict[str, Any] = {
        "ended": 11.0,
        "request_id": "r",
        "class_name": "chat/drafter",
        "source": RoundSource.DRAFTER,
        "round": 3,
        "num_drafted": 7,
        "num_verified": 4,
        "num_accepted": 2,
        "num_tokens": 3,
        "is_cut": False,
        "position": 12,
        "context": 100,
        "cohort": 5,
        "cohort_size": 2,
        "parts": PARTS,
        "target_step": Step(10, 0.010, 200, 9),
        "draft_step": Step(2, 0.002, 7, 8),
        "plan": Share(5, 2, 1, 321.5, False),
    }
    return RoundRecord(**{**values, **changes})


def decode(data: bytes) -> list[RoundRecord | Lost]:
    return list(Decoder("test").feed(data))


def readable(data: bytes) -> list[RoundRecord | Lost] | None:
    """None when it is refused."""
    try:
        return decode(data)
    except InvalidRequest:
        return None


small = st.integers(0, 2**40)
seconds = st.floats(0, 1e6, allow_nan=False)
steps = st.builds(Step, small, seconds, small, small)
records = st.builds(
    RoundRecord,
    ended=seconds,
    request_id=st.text(max_size=20),
    class_name=st.text(max_size=20),
    source=st.sampled_from(RoundSource),
    round=small,
    num_drafted=small,
    num_verified=small,
    num_accepted=small,
    num_tokens=small,
    is_cut=st.booleans(),
    position=small,
    context=small,
    cohort=small,
    cohort_size=small,
    parts=st.builds(RoundParts, *[seconds] * 6),
    target_step=steps,
    draft_step=steps,
    plan=st.builds(Share, small, small, small, seconds, st.booleans()),
)


@settings(deadline=None, max_examples=40)
@given(st.lists(records, max_size=5), st.data())
def test_what_was_written_is_read_however_it_is_cut(written: list[RoundRecord], data: st.DataObject) -> None:
    """Any prefix of a trace gives a prefix of its records, in pieces of any size."""
    stream = pack_header(HEADER) + pack_records(written)
    assert decode(stream) == written
    end = data.draw(st.integers(0, len(stream)))
    decoder, found = Decoder("test"), []
    for piece in (stream[: end // 2], stream[end // 2 : end]):
        found += list(decoder.feed(piece))
    assert found == written[: len(found)]
    whole = [len(pack_header(HEADER) + pack_records(written[:count])) for count in range(len(written) + 1)]
    assert len(found) == max((count for count, size in enumerate(whole) if size <= end), default=0)


def test_the_header_names_the_fields() -> None:
    first = msgpack.unpackb(pack_header(HEADER))
    assert (first["format"], first["version"]) == ("dlite-rounds", 1)
    assert first["fields"] == list(FIELDS)
    assert len(FIELDS) == len(msgpack.unpackb(pack_records([record()])))
    decoder = Decoder("test")
    list(decoder.feed(pack_header(HEADER)))
    assert decoder.header == HEADER


def test_fields_of_other_versions_are_skipped_or_take_their_defaults() -> None:
    """A writer that knew less, and one that knew more."""
    values = dict(zip(FIELDS, msgpack.unpackb(pack_records([record()])), strict=True))
    del values["cohort"], values["plan.is_probe"]
    values = {"of_later_times": [1, 2], **values}
    header = pack_header(replace(HEADER, names=tuple(values)))
    assert readable(header + msgpack.packb(list(values.values()))) == [record(cohort=0)]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello, this is no trace",
        b"\xc1\xc1",
        msgpack.packb({"format": "other"}),
        msgpack.packb({"format": "dlite-rounds", "version": 2, "fields": []}),
        msgpack.packb({"format": "dlite-rounds"}),
        pack_header(HEADER) + msgpack.packb([1, 2]),
        pack_header(HEADER) + msgpack.packb("x"),
        pack_header(HEADER)[:-5],
        json.dumps({"a": 1}).encode(),
    ],
)
def test_what_is_no_trace_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(data)
    with pytest.raises(InvalidRequest) as caught:
        read_trace(path)
    assert str(path) in str(caught.value)


def test_nothing_of_the_text_has_a_field() -> None:
    """The fields of a record are numbers, but for five names."""
    texts = {each.name for each in fields(RoundRecord) if each.type in ("str", "RoundSource")}
    assert texts == {"request_id", "class_name", "source", "drafter", "target"}


def test_a_writer_writes_what_was_put(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "trace"
    writer = TraceWriter(path, HEADER)
    written = [record(round=number, ended=float(number)) for number in range(3000)]
    for each in written:
        writer.put(each)
    writer.stop()
    trace = read_trace(path)
    assert trace.header == HEADER
    assert list(trace.records) == written
    assert trace.num_lost == 0


def test_what_does_not_fit_is_counted() -> None:
    """A writer that is too slow costs records, never memory; the trace says how many."""
    waiting = Waiting(4)
    for number in range(10):
        waiting.put(record(round=number))
    found = decode(pack_header(HEADER) + waiting.take(3) + waiting.take(3) + waiting.take(3))
    assert [each.round for each in found if isinstance(each, RoundRecord)] == [0, 1, 2, 3]
    assert found[-1] == Lost(6)
    waiting.put(record(round=11))
    assert decode(pack_header(HEADER) + waiting.take(3)) == [record(round=11)]


def test_a_file_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidRequest):
        TraceWriter(tmp_path / "file" / "trace", HEADER)


KILLED = """
import os, signal, sys, time
from pathlib import Path
from coordinator.trace.writer import TraceWriter
from tests.test_trace import HEADER, record
path = Path(sys.argv[1])
writer = TraceWriter(path, HEADER)
size = path.stat().st_size
for number in range(500):
    writer.put(record(round=number, ended=float(number)))
while path.stat().st_size == size:
    time.sleep(0.01)
while path.stat().st_size != size:
    size = path.stat().st_size
    time.sleep(0.3)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_trace_is_readable_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert done.returncode == -9
    assert [each.round for each in read_trace(path).records] == list(range(500))
    with path.open("r+b") as file:
        file.seek(-7, io.SEEK_END)
        file.truncate()
    assert len(read_trace(path).records) == 499


class Listener:
    def __init__(self) -> None:
        self.records: list[RoundRecord] = []

    def put(self, record: RoundRecord) -> None:
        self.records.append(record)


def test_a_feed_sums_up_and_tells_those_who_listen() -> None:
    feed, listener = RoundFeed(), Listener()
    feed.note(record())
    with feed.listening(listener):
        feed.note(record(num_tokens=5, plan=Share(5, 2, 2, 1.0)))
    feed.note(record(source=RoundSource.RUN, num_drafted=0, num_verified=0, num_accepted=0))
    feed.note_text(pb.Finished(finish_reason=FINISH_REASON_STOP, usage=pb.Usage(prompt_tokens=9)))
    feed.note_text(pb.Finished(finish_reason=FINISH_REASON_ERROR, usage=pb.Usage(cached_tokens=4)))
    assert [each.num_tokens for each in listener.records] == [5]
    stats = pb.GetStatsResponse()
    feed.fill(stats)
    assert (stats.num_texts, stats.num_failed, stats.prompt_tokens, stats.cached_tokens) == (2, 1, 9, 4)
    sums = {each.source: each for each in stats.rounds}
    assert set(sums) == {"drafter", "run"}
    drafter = sums["drafter"]
    assert (drafter.num_rounds, drafter.num_tokens) == (2, 8)
    assert (drafter.num_drafted, drafter.num_verified, drafter.num_accepted) == (14, 8, 4)
    assert list(drafter.num_rounds_by_cohorts) == [1, 1]
    parts = (drafter.draft_seconds, drafter.verify_seconds, drafter.draft_network_seconds)
    assert parts == pytest.approx((0.004, 0.020, 0.002))
    rest = (drafter.target_network_seconds, drafter.queue_seconds, drafter.scheduling_seconds)
    assert rest == pytest.approx((0.001, 0.0002, 0.0008))


def test_too_many_listeners_are_refused() -> None:
    feed = RoundFeed()
    with pytest.raises(Busy):
        _listen(feed, MAX_LISTENERS + 1)
    with feed.listening(Listener()):
        pass


def _listen(feed: RoundFeed, count: int) -> None:
    if count:
        with feed.listening(Listener()):
            _listen(feed, count - 1)


def test_the_parts_of_a_round_are_its_wall_time() -> None:
    assert PARTS.wall == pytest.approx(0.014)
    assert record().block_size == 5
    assert not record(source=RoundSource.UNDRAFTED).is_speculative
