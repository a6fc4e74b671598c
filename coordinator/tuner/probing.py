"""Probes: rounds that look at what the present choice does not show. Pure: the draw is handed in.

One or two rounds in a hundred, fewer where a probe is dear, so that probes together cost at most
`budget` of the time. A probe that goes better than believed is repeated, a few times at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_REACHED = 0.1
_SURPRISE = 0.3


@dataclass(frozen=True)
class ProbeSettings:
    """How much is spent on looking.

    Args:
        most: share of rounds; budget: share of time, for probes of one request.
        together: of that, for cycles of all at one size.
        most_repeats: probes in a row that a surprise may bring.
    """

    most: float = 0.02
    budget: float = 0.005
    together: float = 0.3
    most_repeats: int = 4


def probe_probability(cycle_seconds: float, lost_seconds: float, settings: ProbeSettings) -> float:
    """The share of a request's rounds that probe.

    Args:
        cycle_seconds: of a usual cycle, divided by the number of requests.
        lost_seconds: by which one probe sets all requests back together.
    """
    if lost_seconds <= 0.0:
        return settings.most
    return min(settings.most, settings.budget * cycle_seconds / lost_seconds)


def longest_probe(survival: Sequence[float]) -> int:
    """The `v` that shows every position likely to be reached: `S_{j-1}` is at least `_REACHED`."""
    reached = [1.0, *survival[:-1]]
    return 1 + sum(value >= _REACHED for value in reached) if survival else 1


def other_size(most_draft_tokens: int, draw: float) -> int:
    """Any `v`, `Run` included: what keeps the cost table honest while speculation is on.

    Args:
        draw: uniform in [0, 1).
    """
    return 1 + int(draw * (most_draft_tokens + 1))


def is_surprise(expected_acceptance: float, num_accepted: int) -> bool:
    """Whether a probe went better than believed, so that looking again at once is worth it."""
    return num_accepted > 0 and expected_acceptance < _SURPRISE
