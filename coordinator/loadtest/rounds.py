"""The rounds of a load test: which request they belong to, and what they did over time. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from coordinator.loadtest.workload import Arm
from coordinator.trace.record import RoundRecord


@dataclass(frozen=True)
class PointRounds:
    """The rounds of one point, in the order they ended.

    Args:
        classes: the data set's category of a request, by its id, where the data set names one; else a round
            is of the class that the tuner counts it in.
        about: header of the trace.
    """

    speculative: tuple[RoundRecord, ...] = ()
    plain: tuple[RoundRecord, ...] = ()
    classes: Mapping[str, str] = field(default_factory=dict)
    about: Mapping[str, str | int | float] = field(default_factory=dict)

    @property
    def begin(self) -> float:
        """When the first round of either arm began."""
        return min(start_of(each) for each in (*self.speculative, *self.plain))

    @property
    def end(self) -> float:
        return max(each.ended for each in (*self.speculative, *self.plain))

    @property
    def has_any(self) -> bool:
        return bool(self.speculative or self.plain)


@dataclass(frozen=True)
class Bin:
    """A stretch of time. None: nothing to tell.

    Args:
        acceptance: accepted of verified, of rounds that ended here.
        block_size: v, num_drafted: k, over the time that rounds took (a run counts v = 1, k = 0).
        seconds_per_token: that a text waited for a token; tokens_per_second: of all texts.
    """

    start: float
    end: float
    acceptance: float | None
    block_size: float | None
    num_drafted: float | None
    seconds_per_token: float | None
    tokens_per_second: float

    @property
    def middle(self) -> float:
        return (self.start + self.end) / 2


def start_of(record: RoundRecord) -> float:
    return record.ended - record.parts.wall


def rounds_of_point(
    records: Iterable[RoundRecord],
    run_id: str,
    categories: Mapping[int, str],
    about: Mapping[str, str | int | float],
) -> PointRounds:
    """The rounds of one point of the sweep, by arm; those of others, and of other clients, are left out.

    Args:
        run_id: of the point.
        categories: of sessions, by their number.
    """
    found: dict[Arm, list[RoundRecord]] = {arm: [] for arm in Arm}
    classes: dict[str, str] = {}
    for record in records:
        for arm in Arm:
            # A tenant's name may stand before it.
            _, mark, rest = record.request_id.partition(f"{run_id}-{arm.value}-")
            if mark:
                found[arm].append(record)
                session = rest.partition("-")[0]
                if session.isdigit() and (category := categories.get(int(session), "")):
                    classes[record.request_id] = category
    return PointRounds(tuple(found[Arm.SPECULATIVE]), tuple(found[Arm.PLAIN]), classes, about)


def bins(records: Sequence[RoundRecord], begin: float, end: float, num_bins: int) -> tuple[Bin, ...]:
    """Even stretches from `begin` to `end`."""
    width = (end - begin) / num_bins
    if width <= 0:
        return ()
    overlapping: list[list[tuple[RoundRecord, float]]] = [[] for _ in range(num_bins)]
    ending: list[list[RoundRecord]] = [[] for _ in range(num_bins)]
    for record in records:
        start = start_of(record)
        first, last = (min(max(int((t - begin) / width), 0), num_bins - 1) for t in (start, record.ended))
        ending[last].append(record)
        for number in range(first, last + 1):
            low, high = begin + number * width, begin + (number + 1) * width
            overlap = min(record.ended, high) - max(start, low)
            if overlap > 0:
                overlapping[number].append((record, overlap))
    return tuple(
        _bin(begin + number * width, width, overlapping[number], ending[number]) for number in range(num_bins)
    )


def _bin(
    start: float, width: float, overlapping: list[tuple[RoundRecord, float]], ending: list[RoundRecord]
) -> Bin:
    seconds = sum(overlap for _, overlap in overlapping)
    tokens = sum(record.num_tokens * overlap / record.parts.wall for record, overlap in overlapping)

    def mean(value: Callable[[RoundRecord], float]) -> float | None:
        return sum(value(record) * overlap for record, overlap in overlapping) / seconds if seconds else None

    return Bin(
        start,
        start + width,
        acceptance_of(ending),
        mean(lambda record: record.block_size),
        mean(lambda record: record.num_drafted),
        seconds / tokens if tokens else None,
        tokens / width,
    )


def acceptance_of(records: Iterable[RoundRecord]) -> float | None:
    """Accepted of verified proposals."""
    pairs = [(record.num_accepted, record.num_verified) for record in records]
    num_verified = sum(verified for _, verified in pairs)
    return sum(accepted for accepted, _ in pairs) / num_verified if num_verified else None


def seconds_per_token(records: Iterable[RoundRecord]) -> float | None:
    """That a text waited for a token, over all rounds."""
    pairs = [(record.parts.wall, record.num_tokens) for record in records]
    tokens = sum(count for _, count in pairs)
    return sum(wall for wall, _ in pairs) / tokens if tokens else None


def by_class(rounds: PointRounds) -> dict[str, list[RoundRecord]]:
    """Rounds with proposals of the speculative arm, by class; the classes with most rounds first."""
    found: dict[str, list[RoundRecord]] = defaultdict(list)
    for record in rounds.speculative:
        if record.num_verified:
            found[rounds.classes.get(record.request_id, record.class_name)].append(record)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def by_position(records: Iterable[RoundRecord]) -> tuple[float | None, ...]:
    """a_1, a_2, ..: share of proposals that stood, of those verified and reached; None: none was."""
    reached: dict[int, int] = defaultdict(int)
    stood: dict[int, int] = defaultdict(int)
    for record in records:
        judged = record.num_accepted + (not record.is_cut)
        for position in range(1, min(judged, record.num_verified) + 1):
            reached[position] += 1
            stood[position] += position <= record.num_accepted
    most = max(reached, default=0)
    return tuple(
        stood[position] / reached[position] if reached[position] else None for position in range(1, most + 1)
    )


def mean_parts(records: Sequence[RoundRecord]) -> dict[str, float]:
    """Milliseconds of a round with proposals, by part; empty without any."""
    parts = [record.parts for record in records if record.num_verified]
    names = ("draft", "verify", "draft_network", "target_network", "queue", "scheduling")
    return {name: 1e3 * sum(getattr(each, name) for each in parts) / len(parts) for name in names if parts}
