"""Where training text comes from: counted from the shards themselves, with the licence of each source."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from protos.errors import InvalidRequest
from protos.shards import CapturedSequence

_FILE = Path(__file__).parent / "data_sources.json"


@dataclass(frozen=True)
class Source:
    """What is known of a source by its name."""

    title: str
    licence: str
    url: str


@dataclass(frozen=True)
class SourceCount:
    """What the shards hold of a source; `temperatures` are those at which the target answered."""

    name: str
    source: Source
    num_sequences: int
    num_response_tokens: int
    temperatures: tuple[float, ...]

    def as_record(self) -> dict[str, Any]:
        record = {**asdict(self), **asdict(self.source)}
        del record["source"]
        return record


def known_sources(more: Sequence[Path] = ()) -> dict[str, Source]:
    """The project's table of sources, then those of other files of its form.

    Raises:
        InvalidRequest: a file cannot be read, or an entry lacks a title, a licence or an address.
    """
    known: dict[str, Source] = {}
    for file in (_FILE, *more):
        try:
            entries = json.loads(file.read_text())
            known |= {name: Source(**entry) for name, entry in entries.items()}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise InvalidRequest(f"{file} is no table of sources: {error}", field="--sources") from error
    return known


def count_sources(sequences: Iterable[CapturedSequence], known: dict[str, Source]) -> list[SourceCount]:
    """Counts by source, most tokens first. `agent:KIND` and `trace:KIND` are looked up as agent, trace.

    Raises:
        InvalidRequest: a source is not in the table, so that its licence is not known.
    """
    names: dict[str, list[CapturedSequence]] = {}
    for sequence in sequences:
        names.setdefault(sequence.source, []).append(sequence)
    unknown = sorted(name for name in names if name.partition(":")[0] not in known)
    if unknown:
        raise InvalidRequest(
            f"the data has the source {unknown[0]!r}, of which no licence is known; add it to a JSON file "
            '{"NAME": {"title": .., "licence": .., "url": ..}} and give it with --sources',
            field="--sources",
        )
    counts = [
        SourceCount(
            name=name,
            source=known[name.partition(":")[0]],
            num_sequences=len(texts),
            num_response_tokens=sum(text.num_response_tokens for text in texts),
            temperatures=tuple(sorted({round(text.temperature, 3) for text in texts})),
        )
        for name, texts in names.items()
    ]
    return sorted(counts, key=lambda count: -count.num_response_tokens)
