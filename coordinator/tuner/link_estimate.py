"""What a message costs on a link, from echoed stamps. Pure: round trips are handed in."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.tuner.running import RunningMean, Slope, Window

_WINDOW = 256
# Of the RTP specification (RFC 3550): jitter follows the last sixteen differences.
_JITTER_WINDOW = 16


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
    """Running estimates of one link; a changed link is followed within `_WINDOW` messages."""

    def __init__(self) -> None:
        self._bare = Window(_WINDOW)
        self._slope = Slope(_WINDOW)
        self._jitter = RunningMean(_JITTER_WINDOW)
        self._last: float | None = None
        self._rtt: float | None = None

    def note(self, rtt_seconds: float, num_bytes: int) -> None:
        """Takes a round trip, less what the peer kept it, of so many bytes both ways."""
        self._slope.note(num_bytes, rtt_seconds)
        bare = max(rtt_seconds - self._slope.value * num_bytes, 0.0)
        if self._last is not None:
            self._jitter.note(abs(bare - self._last))
        self._last = bare
        self._bare.note(bare)
        self._rtt = None

    @property
    def rtt_seconds(self) -> float:
        """The median round trip of an empty message; 0 before any was measured."""
        if self._rtt is None:
            self._rtt = self._bare.percentile(50)
        return self._rtt

    @property
    def jitter_seconds(self) -> float:
        return self._jitter.mean

    def seconds(self, num_bytes: int) -> float:
        """rtt + bytes / bandwidth."""
        return self.rtt_seconds + self._slope.value * num_bytes

    def percentile(self, percent: float) -> float:
        """A percentile of the round trip of an empty message."""
        return self._bare.percentile(percent)

    def report(self) -> LinkReport:
        slope = self._slope.value
        return LinkReport(
            num_samples=len(self._bare),
            rtt_p50_seconds=self.percentile(50),
            rtt_p90_seconds=self.percentile(90),
            rtt_p99_seconds=self.percentile(99),
            jitter_seconds=self.jitter_seconds,
            bytes_per_second=1.0 / slope if slope > 0 else None,
        )
