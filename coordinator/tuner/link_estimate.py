"""What a message costs on a link, from echoed stamps. Pure: round trips are handed in."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from coordinator.tuner.running import nearest_rank

_WINDOW = 256
# Of the RTP specification (RFC 3550): jitter follows the last sixteen differences.
_JITTER_WINDOW = 16
# Messages tell the bandwidth only if their sizes differ by so much: below it a byte's share of a
# round trip drowns in jitter (16 KiB take 0.13 ms at 1 Gbit/s), and a slope of noise is no bandwidth.
_TELLING_BYTES = 16 * 1024
_LEAST_OF_A_SIZE = 4


class RoundTrip(NamedTuple):
    """One measured round trip, less what the peer kept it, of so many bytes both ways."""

    seconds: float
    num_bytes: int


@dataclass(frozen=True)
class LinkReport:
    """A link in numbers, for people. `bytes_per_second` is None where size makes no difference."""

    num_samples: int
    rtt_p50_seconds: float
    rtt_p90_seconds: float
    rtt_p99_seconds: float
    jitter_seconds: float
    bytes_per_second: float | None


class LinkEstimate:
    """Running estimates of one link; a changed link is followed within `_WINDOW` messages.

    Medians throughout: a pause of either process is one bad value, not a slow link.
    """

    def __init__(self) -> None:
        self._round_trips: deque[RoundTrip] = deque(maxlen=_WINDOW)
        self._slope: float | None = None
        self._bare: list[float] | None = None

    def note(self, rtt_seconds: float, num_bytes: int) -> None:
        """Takes a round trip, less what the peer kept it, of so many bytes both ways."""
        self._round_trips.append(RoundTrip(rtt_seconds, num_bytes))
        self._slope = self._bare = None

    @property
    def rtt_seconds(self) -> float:
        """The median round trip of an empty message; 0 before any was measured."""
        return self.percentile(50)

    @property
    def jitter_seconds(self) -> float:
        """Mean difference of successive round trips of an empty message."""
        slope = self._byte_seconds
        last = [max(t.seconds - slope * t.num_bytes, 0.0) for t in list(self._round_trips)[-_JITTER_WINDOW:]]
        differences = [abs(after - before) for before, after in pairwise(last)]
        return statistics.fmean(differences) if differences else 0.0

    def seconds(self, num_bytes: int) -> float:
        """rtt + bytes / bandwidth."""
        return self.rtt_seconds + self._byte_seconds * num_bytes

    def percentile(self, percent: float) -> float:
        """A percentile of the round trip of an empty message."""
        if self._bare is None:
            slope = self._byte_seconds
            self._bare = sorted(max(t.seconds - slope * t.num_bytes, 0.0) for t in self._round_trips)
        return nearest_rank(self._bare, percent)

    def report(self) -> LinkReport:
        slope = self._byte_seconds
        return LinkReport(
            num_samples=len(self._round_trips),
            rtt_p50_seconds=self.percentile(50),
            rtt_p90_seconds=self.percentile(90),
            rtt_p99_seconds=self.percentile(99),
            jitter_seconds=self.jitter_seconds,
            bytes_per_second=1.0 / slope if slope > 0 else None,
        )

    @property
    def _byte_seconds(self) -> float:
        if self._slope is None:
            self._slope = _slope_of(self._round_trips)
        return self._slope


def _slope_of(round_trips: deque[RoundTrip]) -> float:
    """Seconds a byte: between the median small and the median large message; 0 where sizes do not tell."""
    if len(round_trips) < 2 * _LEAST_OF_A_SIZE:
        return 0.0
    middle = (min(t.num_bytes for t in round_trips) + max(t.num_bytes for t in round_trips)) / 2
    small = [t for t in round_trips if t.num_bytes <= middle]
    large = [t for t in round_trips if t.num_bytes > middle]
    if min(len(small), len(large)) < _LEAST_OF_A_SIZE:
        return 0.0
    more_bytes = statistics.median(t.num_bytes for t in large) - statistics.median(t.num_bytes for t in small)
    if more_bytes < _TELLING_BYTES:
        return 0.0
    more_seconds = statistics.median(t.seconds for t in large) - statistics.median(t.seconds for t in small)
    return max(more_seconds / more_bytes, 0.0)
