"""Probes: rounds that look at what the present choice does not show. Pure: the draw is handed in.

One or two rounds in a hundred, fewer where a probe is dear, so that probes together cost at most
`budget` of the time. A probe that goes better than believed is repeated, a few times at most.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ProbeSettings:
    """How much is spent on looking.

    Args:
        most: share of rounds; budget: share of time.
        most_repeats: probes in a row that a surprise may bring.
    """

    most: float = 0.02
    budget: float = 0.012
    most_repeats: int = 4


def probe_probability(usual_seconds: float, probe_seconds: float, settings: ProbeSettings) -> float:
    """The share of rounds that probe, when a round takes `usual_seconds` and a probe `probe_seconds`."""
    dearer = probe_seconds - usual_seconds
    if dearer <= 0.0:
        return settings.most
    return min(settings.most, settings.budget * usual_seconds / dearer)


def probe_size(most_draft_tokens: int, draw: float) -> int:
    """The `v` of a probe. Half of them verify everything, which shows all positions; the others any
    size, `Run` included, which keeps the cost table honest.

    Args:
        draw: uniform in [0, 1).
    """
    if draw < 0.5:
        return most_draft_tokens + 1
    return 1 + int((draw - 0.5) * 2 * (most_draft_tokens + 1))


def is_surprise(expected_acceptance: float, num_accepted: int) -> bool:
    """Whether a probe went better than believed, so that looking again at once is worth it."""
    return num_accepted > 0 and expected_acceptance < 0.5
