"""Whether other drafter weights are worse than those before. Pure.

Two windows of rounds are compared by what they say of acceptance alone: `a_j` is how often proposal `j` was
accepted where it was verified with all before it accepted. That does not depend on how many proposals were
verified, which the tuner changes with acceptance. The accept length up to the same position follows from
it: tau = 1 + a_1 + a_1 a_2 + ..
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from protos.coordinator_pb2 import DraftSums

# A position that fewer rounds have reached says nothing.
_LEAST_REACHED = 20
# Standard errors that a difference must exceed to count: once at the end, or at any look before it.
CERTAIN = 2.0
CERTAIN_EARLY = 4.0


@dataclass(frozen=True)
class Acceptance:
    """What a window of rounds showed.

    Args:
        reached, accepted: by position j = 1..: rounds that verified it with all before it accepted, and
            those that accepted it.
    """

    num_rounds: int = 0
    num_tokens: int = 0
    reached: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()

    @classmethod
    def of(cls, sums: Iterable[DraftSums], fingerprints: Iterable[str]) -> Acceptance:
        """Of all drafters with one of these fingerprints together, since the start."""
        wanted = set(fingerprints)
        found = [each for each in sums if each.fingerprint in wanted]
        return cls(
            sum(each.num_rounds for each in found),
            sum(each.num_tokens for each in found),
            _sum([each.reached_per_position for each in found]),
            _sum([each.accepted_per_position for each in found]),
        )

    def since(self, before: Acceptance) -> Acceptance:
        """Only what came after."""
        return Acceptance(
            self.num_rounds - before.num_rounds,
            self.num_tokens - before.num_tokens,
            _sum([self.reached, [-count for count in before.reached]]),
            _sum([self.accepted, [-count for count in before.accepted]]),
        )

    @property
    def num_positions(self) -> int:
        """Positions that enough rounds have reached."""
        return sum(count >= _LEAST_REACHED for count in self.reached)


@dataclass(frozen=True)
class Comparison:
    """Two windows side by side, over the positions that both have.

    Args:
        before, after: tau. error: standard error of their difference.
        tolerance: the part of tau that may be lost.
    """

    before: float
    after: float
    error: float
    num_positions: int
    tolerance: float

    def is_worse(self, certain: float = CERTAIN) -> bool:
        """Whether more than the tolerance is lost, and chance is no explanation."""
        return self.after + certain * self.error < self.before * (1 - self.tolerance)


def compare(before: Acceptance, after: Acceptance, tolerance: float) -> Comparison | None:
    """None while one of them says too little."""
    count = min(before.num_positions, after.num_positions)
    if not count:
        return None
    (tau, spread), (other_tau, other_spread) = _tau(before, count), _tau(after, count)
    return Comparison(tau, other_tau, math.hypot(spread, other_spread), count, tolerance)


def _tau(found: Acceptance, num_positions: int) -> tuple[float, float]:
    """Mean accept length up to a position, and its standard error."""
    survival, tau, square = 1.0, 1.0, 1.0
    for j in range(num_positions):
        survival *= found.accepted[j] / found.reached[j]
        tau += survival
        # E[L^2] = sum over j of (2 j + 1) P(L > j)
        square += (2 * (j + 1) + 1) * survival
    # Doubt remains where nothing or everything was accepted.
    spread = max(square - tau * tau, 0.0) + 1.0 / found.reached[0]
    return tau, math.sqrt(spread / found.reached[0])


def _sum(rows: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Position by position; rows may be of any lengths."""
    return tuple(sum(column) for column in zip_longest(*rows, fillvalue=0))
