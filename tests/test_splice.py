"""Messages joined from encoded parts are what protobuf itself writes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos import draft_pb2
from protos.splice import Spliced, varint
from protos.stream import Stamps

FIELDS = draft_pb2.ProposeBatch.ITEMS_FIELD_NUMBER, draft_pb2.ProposeList.ITEMS_FIELD_NUMBER


@given(
    st.lists(st.tuples(st.text(max_size=20), st.integers(0, 2**64 - 1), st.binary(max_size=400)), max_size=4),
    st.booleans(),
)
def test_equal_to_protobuf(fields: list[tuple[str, int, bytes]], is_stamped: bool) -> None:
    items = [draft_pb2.ProposeItem(request_id=name, epoch=epoch, k=3) for name, epoch, _ in fields]
    for item, (_, _, data) in zip(items, fields, strict=True):
        item.features.data = data
    message = Spliced(*FIELDS, [item.SerializeToString() for item in items])
    expected = draft_pb2.ProposeBatch(items=draft_pb2.ProposeList(items=items))
    if is_stamped:
        Stamps(lambda: 12345).fill(message.stamp)
        Stamps(lambda: 12345).fill(expected.stamp)
    assert message.SerializeToString() == expected.SerializeToString()
    assert message.ByteSize() == expected.ByteSize()


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0, b"\x00"),
        (1, b"\x01"),
        (127, b"\x7f"),
        (128, b"\x80\x01"),
        (300, b"\xac\x02"),
        (229376, b"\x80\x80\x0e"),
    ],
)
def test_numbers_as_protobuf_writes_them(value: int, written: bytes) -> None:
    assert varint(value) == written
