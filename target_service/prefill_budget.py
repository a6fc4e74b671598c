"""How many rows of prefill a step may take, so that it ends within a set time.

A long prompt shares its steps with everybody who decodes; the budget is a time, and the measured
cost of a row turns it into rows. The chunking never changes a text, only when it comes.
"""

from __future__ import annotations

# Weight of the newest measurement in the running mean.
_NEWEST = 0.3


class PrefillBudget:
    """Rows of prefill for the next step.

    A step costs `base + row_cost * prefill rows`; the base is learned from steps without prefill. Taking
    the base for row cost would shrink the chunks, raise the cost of a row, and shrink them again.
    The budget is for those who decode meanwhile: without them prefill takes all rows.

    Args:
        seconds: what prefill may add to a step; 0 always gives `most_rows`.
        least_rows: given in any case, so that prefill gets on.
        most_rows: given at most, also before anything is measured.
    """

    def __init__(self, seconds: float, least_rows: int, most_rows: int) -> None:
        self._seconds = seconds
        self._least_rows = min(least_rows, most_rows)
        self._most_rows = most_rows
        self._base_seconds = 0.0
        self._row_seconds = 0.0
        self._somebody_decodes = False

    @property
    def rows(self) -> int:
        if not (self._seconds and self._row_seconds and self._somebody_decodes):
            return self._most_rows
        rows = int(self._seconds / self._row_seconds)
        return max(self._least_rows, min(rows, self._most_rows))

    def note(self, prefill_rows: int, all_rows: int, seconds: float) -> None:
        """Learns from a step.

        Args:
            prefill_rows: of sequences that had more than their anchor to compute.
            all_rows: rows of the step.
            seconds: the forward pass took.
        """
        self._somebody_decodes = all_rows > prefill_rows
        if prefill_rows == 0:
            self._base_seconds = _blend(self._base_seconds, seconds)
        elif prefill_rows >= self._least_rows:
            cost = max(seconds - self._base_seconds, 0.0) / prefill_rows
            self._row_seconds = _blend(self._row_seconds, cost)


def _blend(known: float, newest: float) -> float:
    return known + _NEWEST * (newest - known) if known else newest
