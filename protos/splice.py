"""Stream messages whose large parts are encoded already: put together by joining bytes.

Protobuf copies a message that becomes part of another, once at every level, and once more to encode
the whole. Features pass the coordinator unopened, so it encodes the small part and joins the rest.
"""

from __future__ import annotations

from collections.abc import Iterable

from protos import common_pb2

_STAMP_FIELD = 1
_LENGTH_DELIMITED = 2


def varint(value: int) -> bytes:
    """A non-negative number as protobuf writes it."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def header(field: int, num_bytes: int) -> bytes:
    """What stands before the bytes of an embedded message."""
    return varint(field << 3 | _LENGTH_DELIMITED) + varint(num_bytes)


class Spliced:
    """A message with a stamp in field 1 and an encoded list in another field.

    Args:
        body_field: of the list in the message; item_field: of an item in the list.
        items: encoded.
    """

    def __init__(self, body_field: int, item_field: int, items: Iterable[bytes]) -> None:
        self.stamp = common_pb2.Stamp()
        self._parts: list[bytes] = []
        for item in items:
            self._parts += (header(item_field, len(item)), item)
        self._num_bytes = sum(map(len, self._parts))
        self._parts.insert(0, header(body_field, self._num_bytes))
        self._num_bytes += len(self._parts[0])

    def ByteSize(self) -> int:
        """Without the stamp, as long as that is empty."""
        return self._num_bytes + len(self._stamp())

    def SerializeToString(self) -> bytes:
        """The wire form: equal to what protobuf writes."""
        return b"".join((self._stamp(), *self._parts))

    def _stamp(self) -> bytes:
        stamp = self.stamp.SerializeToString()
        return header(_STAMP_FIELD, len(stamp)) + stamp if stamp else b""
