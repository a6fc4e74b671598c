"""When requests arrive in an open loop. Pure."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from itertools import accumulate

from protos.errors import InvalidRequest

LINEAR = "linear"
EXPONENTIAL = "exponential"


@dataclass(frozen=True)
class Ramp:
    """A rate that changes with the number of requests sent; rates in requests/s."""

    strategy: str
    start_rate: float
    end_rate: float

    def __post_init__(self) -> None:
        if self.strategy not in (LINEAR, EXPONENTIAL):
            raise InvalidRequest(
                f"{self.strategy!r} is neither {LINEAR} nor {EXPONENTIAL}", field="--ramp-up-strategy"
            )
        if not (0 < self.start_rate < math.inf and 0 < self.end_rate < math.inf):
            raise InvalidRequest("both rates must be finite and above 0", field="--ramp-up-start-rps")

    def rate_at(self, progress: float) -> float:
        """The rate when the share `progress` (0..1) of the requests has been sent."""
        if self.strategy == LINEAR:
            return self.start_rate + (self.end_rate - self.start_rate) * progress
        return float(self.start_rate * (self.end_rate / self.start_rate) ** progress)


@dataclass(frozen=True)
class Arrivals:
    """An arrival process.

    Args:
        rate: requests/s; inf: all at once.
        burstiness: shape of the gamma law of the gaps: 1 is Poisson, below 1 burstier, inf even.
        ramp: replaces the rate.
    """

    rate: float = math.inf
    burstiness: float = 1.0
    ramp: Ramp | None = None

    def __post_init__(self) -> None:
        if not self.rate > 0:
            raise InvalidRequest(f"{self.rate} is not above 0", field="--request-rate")
        if not self.burstiness > 0:
            raise InvalidRequest(f"{self.burstiness} is not above 0", field="--burstiness")

    def rate_at(self, progress: float) -> float:
        return self.ramp.rate_at(progress) if self.ramp else self.rate


def arrival_offsets(arrivals: Arrivals, num_arrivals: int, rng: random.Random) -> tuple[float, ...]:
    """Seconds from the start of the run at which each request arrives, ascending from 0.

    Without a ramp the gaps are scaled so that the offered rate is exactly the configured one.
    """
    num_gaps = max(num_arrivals - 1, 0)
    rates = [arrivals.rate_at(index / max(num_gaps - 1, 1)) for index in range(num_gaps)]
    if math.isinf(arrivals.burstiness) and not arrivals.ramp:
        return tuple(index / arrivals.rate for index in range(num_arrivals))
    gaps = [_gap_seconds(rate, arrivals.burstiness, rng) for rate in rates]
    total = sum(gaps)
    if arrivals.ramp is None and total > 0:
        gaps = [gap * num_gaps / arrivals.rate / total for gap in gaps]
    return tuple(accumulate(gaps, initial=0.0))[:num_arrivals]


def _gap_seconds(rate: float, burstiness: float, rng: random.Random) -> float:
    if math.isinf(rate):
        return 0.0
    if math.isinf(burstiness):
        return 1.0 / rate
    return rng.gammavariate(burstiness, 1.0 / (rate * burstiness))
