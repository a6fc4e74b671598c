"""What a drafter's confidence is worth: its own probability of a proposal, turned into `a_j`.

Only for greedy and coupled rounds: there the text does not depend on `v`. In a rejection round `v`
is fixed before proposals are seen, and what decides there takes no confidence (see `verify`).
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.tuner.isotonic import non_decreasing
from coordinator.tuner.running import RunningMean
from coordinator.tuner.survival import Verified

_NUM_BINS = 10
_WINDOW = 200
# So many outcomes weigh as much as the prior, which takes a confidence at its word.
_PRIOR_WEIGHT = 4.0


class Calibration:
    """A non-decreasing map from confidence to acceptance for each position.

    Invariant: counted are only proposals that were verified and reached.
    """

    def __init__(self) -> None:
        self._bins: list[list[RunningMean]] = []
        self._maps: dict[int, list[float]] = {}

    def note(self, confidences: Sequence[float], verified: Verified) -> None:
        """Takes a round: the drafter's probability of each proposal, in [0, 1], and what became of it."""
        for index, stands in enumerate(verified.outcomes()[: len(confidences)]):
            while index >= len(self._bins):
                self._bins.append([RunningMean(_WINDOW) for _ in range(_NUM_BINS)])
            self._bins[index][_bin_of(confidences[index])].note(float(stands))
            self._maps.pop(index, None)

    def acceptance(self, confidences: Sequence[float]) -> tuple[float, ...]:
        """`a_1 .. a_k` of proposals by their confidences."""
        return tuple(self._map(index)[_bin_of(value)] for index, value in enumerate(confidences))

    def _map(self, index: int) -> list[float]:
        if index >= len(self._bins):
            return [_centre(number) for number in range(_NUM_BINS)]
        if index not in self._maps:
            self._maps[index] = _fit(self._bins[index])
        return self._maps[index]


def _fit(bins: Sequence[RunningMean]) -> list[float]:
    weights = [found.count + _PRIOR_WEIGHT for found in bins]
    values = [
        (found.mean * found.count + _centre(number) * _PRIOR_WEIGHT) / weights[number]
        for number, found in enumerate(bins)
    ]
    return non_decreasing(values, weights)


def _bin_of(confidence: float) -> int:
    return min(max(int(confidence * _NUM_BINS), 0), _NUM_BINS - 1)


def _centre(number: int) -> float:
    return (number + 0.5) / _NUM_BINS
