"""Reads traces of rounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from coordinator.trace.format import Decoder, Header, Lost
from coordinator.trace.record import RoundRecord
from protos.errors import InvalidRequest

_PIECE_BYTES = 1 << 16


@dataclass(frozen=True)
class Trace:
    """A whole trace. Records are in the order they ended; `num_lost` were not written."""

    header: Header
    records: tuple[RoundRecord, ...]
    num_lost: int = 0


def read_trace(path: Path) -> Trace:
    """A whole file; a record that is cut off at its end is left out.

    Raises:
        InvalidRequest: no file, or no trace.
    """
    decoder = Decoder(str(path))
    records: list[RoundRecord] = []
    num_lost = 0
    for found in _decode(path, decoder):
        if isinstance(found, Lost):
            num_lost += found.num_records
        else:
            records.append(found)
    if decoder.header is None:
        raise InvalidRequest(f"{path} is no trace of rounds: it ends before its header", field="trace")
    records.sort(key=lambda record: record.ended)
    return Trace(decoder.header, tuple(records), num_lost)


def _decode(path: Path, decoder: Decoder) -> Iterator[RoundRecord | Lost]:
    try:
        with path.open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                yield from decoder.feed(piece)
    except OSError as error:
        raise InvalidRequest(f"cannot read {path}: {error}", field="trace") from error
