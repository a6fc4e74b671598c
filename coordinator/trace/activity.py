"""Which texts ran when, from the rounds of a trace. Pure; instants of the records' clock."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from coordinator.trace.record import RoundRecord
from protos.errors import InvalidRequest


@dataclass(frozen=True, eq=False)
class Span:
    """One text, from its first round to its last.

    Args:
        class_name: of its rounds with proposals; else of its first round.
        context: committed tokens at its first round.
    """

    request_id: str
    class_name: str
    context: int
    start: float
    end: float
    last: RoundRecord


class Activity:
    """The texts of a trace.

    Raises:
        InvalidRequest: there are no records.
    """

    def __init__(self, records: Sequence[RoundRecord]) -> None:
        if not records:
            raise InvalidRequest("the trace has no rounds", field="trace")
        by_request: dict[str, list[RoundRecord]] = defaultdict(list)
        for record in records:
            by_request[record.request_id].append(record)
        self._rounds = by_request
        usual = next((each.class_name for each in records if each.is_speculative), records[0].class_name)
        self._spans = {name: _span(found, usual) for name, found in by_request.items()}
        self._by_start = sorted(self._spans.values(), key=lambda span: span.start)
        self._latest_span_ends = list(accumulate((span.end for span in self._by_start), max))
        self.begin = self._by_start[0].start
        self.end = max(span.end for span in self._by_start)
        # No drafter gives more than was ever given.
        self.most_draft_tokens = max(max(r.num_drafted, r.num_verified) for r in records)
        ordered = sorted(records, key=lambda record: record.ended - record.parts.wall)
        self._starts = [record.ended - record.parts.wall for record in ordered]
        self._ordered = ordered
        # No record that starts before index i ends later than this.
        self._latest_ends = list(accumulate((record.ended for record in ordered), max))

    def span(self, request_id: str) -> Span:
        return self._spans[request_id]

    def running(self, instant: float) -> list[Span]:
        """Texts that have begun and are not over, in order of their beginning."""
        stop = bisect_right(self._by_start, instant, key=lambda span: span.start)
        first = bisect_right(self._latest_span_ends, instant)
        return [span for span in self._by_start[first:stop] if instant < span.end]

    def size_at(self, request_id: str, instant: float) -> int:
        """`v` of the round that a text was in, or was to begin next."""
        rounds = self._rounds[request_id]
        index = bisect_right(rounds, instant, key=lambda record: record.ended)
        return rounds[min(index, len(rounds) - 1)].block_size

    def rate(self, start: float, end: float) -> float:
        """Tokens per second of all texts in a stretch of time; those of a round are spread over it evenly."""
        end = min(end, self.end)
        if end <= start:
            return 0.0
        total = 0.0
        first = bisect_right(self._latest_ends, start)
        for record in self._ordered[first : bisect_left(self._starts, end)]:
            begin, wall = record.ended - record.parts.wall, record.parts.wall
            overlap = min(record.ended, end) - max(begin, start)
            if overlap > 0 and wall > 0:
                total += record.num_tokens * overlap / wall
        return total / (end - start)


def _span(rounds: list[RoundRecord], usual_class: str) -> Span:
    rounds.sort(key=lambda record: record.ended)
    named = next((record.class_name for record in rounds if record.is_speculative), usual_class)
    first, last = rounds[0], rounds[-1]
    start = first.ended - first.parts.wall
    return Span(first.request_id, named, first.context, start, last.ended, last)
