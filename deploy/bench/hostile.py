"""Malformed and hostile messages of any type, from a seed: the schema says what there is to get wrong.

Four kinds: bytes that are no message, a good message with bytes changed or missing, fields with values
that nobody thought of, and fields in numbers that nobody thought of.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

TYPES = FieldDescriptor
FLOATS = (math.nan, math.inf, -math.inf, -1.0, -1e-9, 1e30, 3.4e38)
WHOLE = (0, 1, 2**31 - 1, 2**32 - 1)
LONG = "x" * 200_000
MANY = (2, 50, 3000)
MOST_DEPTH = 4


def bad_values(field: FieldDescriptor) -> Iterator[Any]:
    """Values of a scalar field that some code has not thought of."""
    if field.type in (TYPES.TYPE_FLOAT, TYPES.TYPE_DOUBLE):
        yield from FLOATS
    elif field.type in (TYPES.TYPE_UINT32, TYPES.TYPE_INT32):
        yield from WHOLE
    elif field.type in (TYPES.TYPE_UINT64, TYPES.TYPE_INT64):
        yield from (0, 2**64 - 1)
    elif field.type == TYPES.TYPE_BOOL:
        yield from (False, True)
    elif field.type == TYPES.TYPE_STRING:
        yield from ("", "\x00", "{", "\u202e\ud7ff", LONG)
    elif field.type == TYPES.TYPE_BYTES:
        yield from (b"", b"\xff" * 15, b"\xff" * 17)
    elif field.enum_type is not None:
        yield from (99, *(value.number for value in field.enum_type.values))


class Hostile:
    """Draws messages.

    Args:
        good: valid messages of the type; what is drawn is often near one of them.
    """

    def __init__(self, good: Sequence[Message], seed: int) -> None:
        self._good = good
        self._random = random.Random(seed)

    def draw(self, count: int) -> Iterator[bytes]:
        kinds = (self._garbage, self._changed, self._odd, self._odd, self._many)
        for _ in range(count):
            yield self._random.choice(kinds)()

    def _garbage(self) -> bytes:
        return self._random.randbytes(self._random.choice((0, 1, 7, 100, 5000)))

    def _changed(self) -> bytes:
        rng = self._random
        data = bytearray(rng.choice(self._good).SerializeToString())
        for _ in range(rng.randint(1, 4)):
            if not data:
                break
            at = rng.randrange(len(data))
            change = rng.randrange(4)
            if change == 0:
                data[at] ^= 1 << rng.randrange(8)
            elif change == 1:
                del data[at : at + rng.randint(1, 8)]
            elif change == 2:
                data[at:at] = data[max(at - 20, 0) : at]
            else:
                data[at:at] = rng.randbytes(rng.randint(1, 5))
        return bytes(data)

    def _odd(self) -> bytes:
        """A good message with one to three bad values somewhere."""
        rng = self._random
        message = type(rng.choice(self._good))()
        if rng.random() < 0.8:
            message.CopyFrom(rng.choice(self._good))
        for _ in range(rng.randint(1, 3)):
            self._spoil(message, MOST_DEPTH)
        return message.SerializeToString()

    def _many(self) -> bytes:
        """A good message with a repeated field in great numbers, or a deep nest of empty ones."""
        rng = self._random
        message = type(rng.choice(self._good))()
        message.CopyFrom(rng.choice(self._good))
        place: Any = message
        for _ in range(MOST_DEPTH):
            fields = [field for field in place.DESCRIPTOR.fields if not _is_map(field)]
            if not fields:
                break
            field = rng.choice(fields)
            if field.is_repeated:
                values = getattr(place, field.name)
                for _ in range(rng.choice(MANY)):
                    if field.message_type is not None:
                        values.add()
                    else:
                        values.append(next(iter(bad_values(field))))
                break
            if field.message_type is None:
                break
            place = getattr(place, field.name)
            place.SetInParent()
        return message.SerializeToString()

    def _spoil(self, message: Any, depth: int) -> None:
        rng = self._random
        if not message.DESCRIPTOR.fields:
            return
        field = rng.choice(message.DESCRIPTOR.fields)
        if _is_map(field):
            getattr(message, field.name)[rng.choice((0, 2**32 - 1))] = rng.choice((1e30, float("nan")))
        elif field.message_type is None:
            value = rng.choice(list(bad_values(field)))
            if field.is_repeated:
                getattr(message, field.name).extend([value] * rng.choice((1, 3)))
            else:
                setattr(message, field.name, value)
        elif depth:
            place = getattr(message, field.name)
            if field.is_repeated:
                place = place[rng.randrange(len(place))] if place and rng.random() < 0.7 else place.add()
            else:
                place.SetInParent()
            self._spoil(place, depth - 1)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry
