"""Running estimates: means that follow a change and keep their value while their weight ages."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

# Quick means look back about so many values: few, for a great change, and more, for a smaller one. When one
# leaves the slow mean by more than so many of its own standard deviations, what the slow mean rests on is
# old: the quick one takes its place.
_ALARMS = ((8, 3.5), (24, 2.5))
_LEAST_DEVIATION = 0.28  # times 1 / sqrt(values)


class RunningRate:
    """The rate of a yes-or-no event, each with an instant counted in whatever ages it.

    Evidence that grows old keeps its value and loses its weight: after a long silence a few new
    values decide. Nothing else moves the rate, so no state of it is final.

    Invariant: 0 <= rate <= 1, 0 <= weight <= `window`.
    """

    def __init__(self, window: float, half_life: float, floor: float) -> None:
        self._window = window
        self._half_life = half_life
        self._floor = floor
        self._quick = [0.0] * len(_ALARMS)
        self._weight = 0.0
        self._at = 0.0
        self.rate = 0.0

    def weight(self, at: float) -> float:
        """How many values the rate stands for at an instant."""
        if self._weight <= self._floor:
            return self._weight
        aged = self._weight * math.exp2(-max(at - self._at, 0.0) / self._half_life)
        return max(aged, self._floor)

    def note(self, happened: bool, at: float) -> None:
        value = float(happened)
        if self._weight == 0.0:
            self._quick = [value] * len(_ALARMS)
        weight = min(self.weight(at) + 1.0, self._window)
        self._at = max(at, self._at)
        self._weight = weight
        self.rate += (value - self.rate) / weight
        variance = self.rate * (1.0 - self.rate)
        for index, (window, most) in enumerate(_ALARMS):
            self._quick[index] += (value - self._quick[index]) / min(weight, window)
            deviation = max(math.sqrt(variance / (2 * window - 1)), _LEAST_DEVIATION / math.sqrt(window))
            if abs(self._quick[index] - self.rate) > most * deviation and self._weight > window:
                # Half of it is of before the change.
                self.rate, self._weight = self._quick[index], window / 2


class RunningMean:
    """A mean over about the last `window` values; exact while there are fewer."""

    def __init__(self, window: int) -> None:
        self._window = window
        self.count = 0
        self.mean = 0.0

    def note(self, value: float) -> None:
        self.count = min(self.count + 1, self._window)
        self.mean += (value - self.mean) / self.count


class Window:
    """The last `size` values, for percentiles."""

    def __init__(self, size: int) -> None:
        self._values: deque[float] = deque(maxlen=size)

    def note(self, value: float) -> None:
        self._values.append(value)

    def __len__(self) -> int:
        return len(self._values)

    def percentile(self, percent: float) -> float:
        """The nearest-rank percentile, 0 < percent <= 100; 0 without values."""
        return nearest_rank(sorted(self._values), percent)


def nearest_rank(ranked: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile of values in order, 0 < percent <= 100; 0 without values."""
    return ranked[max(math.ceil(percent / 100 * len(ranked)), 1) - 1] if ranked else 0.0
