"""When a question is asked a second time. Pure: times are handed in."""

from __future__ import annotations

from collections import deque

from coordinator.tuner.running import nearest_rank

# A question that has waited longer than this part of the recent ones is asked elsewhere as well.
PERCENT = 97.0
# Where answers take nearly the same time none is slow before it has taken so many times the median.
_LEAST_TIMES_MEDIAN = 1.5
# Of all questions, so many are at most: a slow hour of every replica must not double their work.
SHARE = 0.03
# And so many in a row, when there was none for long.
_BURST = 4.0
_WINDOW = 256
_EVERY = 16
_LEAST = 16


class AnswerTimes:
    """How long recent answers took, of all replicas together."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_WINDOW)
        self._num_noted = 0
        self._slow: float | None = None

    def note(self, seconds: float) -> None:
        """Takes the time from a question to its answer."""
        self._seconds.append(seconds)
        self._num_noted += 1
        if self._num_noted >= _LEAST and self._num_noted % _EVERY == 0:
            ranked = sorted(self._seconds)
            median = nearest_rank(ranked, 50.0)
            self._slow = max(nearest_rank(ranked, PERCENT), _LEAST_TIMES_MEDIAN * median)

    @property
    def slow_seconds(self) -> float | None:
        """What all but a few took less than; None while too few are known."""
        return self._slow


class HedgeBudget:
    """Second questions stay a small part of all, whatever happens."""

    def __init__(self) -> None:
        self._left = 1.0

    def note_question(self) -> None:
        self._left = min(self._left + SHARE, _BURST)

    def take(self) -> bool:
        """Whether one more may be asked; it counts as asked then."""
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
