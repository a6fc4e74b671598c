"""How traces are written: a stream of msgpack objects.

The first object is the header, a map; it names the fields of a record in order. Then an array for each
record, and a map `{"lost": n}` where n records before it were not written. So a file that ends anywhere
is readable up to there, and a reader knows fields by name: new ones are skipped, and those that an older
writer did not have keep their defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import msgpack

from coordinator.trace.record import RoundParts, RoundRecord, RoundSource, Share, Step
from protos.errors import InvalidRequest

FORMAT = "dlite-rounds"
VERSION = 1
# No record comes near it; a file of anything else shall not fill the memory.
MOST_OBJECT_BYTES = 1 << 20

# Parts of a record that are themselves records: their fields are written flat, as "parts.draft".
_NESTED: dict[str, type] = {"parts": RoundParts, "target_step": Step, "draft_step": Step, "plan": Share}


def _flat_names() -> tuple[str, ...]:
    names: list[str] = []
    for each in fields(RoundRecord):
        nested = _NESTED.get(each.name)
        names += [f"{each.name}.{inner.name}" for inner in fields(nested)] if nested else [each.name]
    return tuple(names)


FIELDS = _flat_names()
_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(FIELDS, 0),
    "request_id": "",
    "class_name": "",
    "source": RoundSource.RUN.value,
    "is_cut": False,
    "plan.is_probe": False,
    "drafter": "",
    "target": "",
}


@dataclass(frozen=True)
class Header:
    """What a trace says of itself.

    Args:
        unix_seconds: the time of day at `clock_seconds` of the records' clock.
        about: names and numbers for people, such as the models.
    """

    unix_seconds: float
    clock_seconds: float
    about: Mapping[str, str | int | float] = field(default_factory=dict)
    names: tuple[str, ...] = FIELDS


@dataclass(frozen=True)
class Lost:
    """So many records are missing at this place."""

    num_records: int


def pack_header(header: Header) -> bytes:
    """The beginning of a trace."""
    packed: bytes = msgpack.packb(
        {
            "format": FORMAT,
            "version": VERSION,
            "unix_seconds": header.unix_seconds,
            "clock_seconds": header.clock_seconds,
            "about": dict(header.about),
            "fields": list(header.names),
        }
    )
    return packed


def pack_records(records: Iterable[RoundRecord]) -> bytes:
    """What follows the header, in any number of pieces."""
    packer = msgpack.Packer()
    return b"".join(packer.pack(_flat(record)) for record in records)


def pack_lost(num_records: int) -> bytes:
    """Says that records are missing here."""
    packed: bytes = msgpack.packb({"lost": num_records})
    return packed


def _flat(record: RoundRecord) -> list[Any]:
    parts, target, draft, plan = record.parts, record.target_step, record.draft_step, record.plan
    return [
        *(record.ended, record.request_id, record.class_name, record.source.value, record.round),
        *(record.num_drafted, record.num_verified, record.num_accepted, record.num_tokens, record.is_cut),
        *(record.position, record.context, record.cohort, record.cohort_size),
        *(
            parts.draft,
            parts.verify,
            parts.draft_network,
            parts.target_network,
            parts.queue,
            parts.scheduling,
        ),
        *(target.rows, target.seconds, target.context, target.number),
        *(draft.rows, draft.seconds, draft.context, draft.number),
        *(plan.block_size, plan.num_requests, plan.num_cohorts, plan.tokens_per_second, plan.is_probe),
        *(record.drafter, record.target),
    ]


class Decoder:
    """Takes the bytes of a trace in pieces of any size. `header` is None until it has come.

    Args:
        name: of the trace, for errors.
    """

    def __init__(self, name: str) -> None:
        self.header: Header | None = None
        self._name = name
        self._unpacker = msgpack.Unpacker(max_buffer_size=64 * MOST_OBJECT_BYTES)

    def feed(self, data: bytes) -> Iterator[RoundRecord | Lost]:
        """The records that are whole now.

        Raises:
            InvalidRequest: this is no trace, or one of a newer version.
        """
        self._unpacker.feed(data)
        try:
            for found in self._unpacker:
                if self.header is None:
                    self.header = self._read_header(found)
                else:
                    yield self._read(found)
        except (ValueError, TypeError, KeyError, msgpack.exceptions.UnpackException) as error:
            raise InvalidRequest(f"{self._name} is damaged: {error}", field="trace") from error

    def _read_header(self, found: Any) -> Header:
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise InvalidRequest(f"{self._name} is no trace of rounds", field="trace")
        if found["version"] > VERSION:
            raise InvalidRequest(
                f"{self._name} is of version {found['version']}, this program reads up to {VERSION}",
                field="trace",
            )
        names = tuple(found["fields"])
        return Header(found["unix_seconds"], found["clock_seconds"], found["about"], names)

    def _read(self, found: Any) -> RoundRecord | Lost:
        if isinstance(found, dict):
            return Lost(int(found["lost"]))
        if not isinstance(found, list):
            raise ValueError(f"a {type(found).__name__} where a record should be")
        assert self.header is not None
        return _record(self.header.names, found)


def _record(names: Sequence[str], values: Sequence[Any]) -> RoundRecord:
    """Fields that this version does not know are skipped, those the writer did not have take defaults."""
    known = {**_DEFAULTS, **{k: v for k, v in zip(names, values, strict=True) if k in _DEFAULTS}}
    nested: dict[str, dict[str, Any]] = {name: {} for name in _NESTED}
    plain: dict[str, Any] = {}
    for name, value in known.items():
        outer, dot, inner = name.partition(".")
        if dot:
            nested[outer][inner] = value
        else:
            plain[name] = value
    plain["source"] = RoundSource(plain["source"])
    return RoundRecord(**plain, **{name: kind(**nested[name]) for name, kind in _NESTED.items()})
