"""How many rows of prefill a step may take, so that it ends within a set time.

A long prompt shares its steps with everybody who decodes; the budget is a time, and the measured
cost of a row turns it into rows. The chunking never changes a text, only when it comes.
"""

from __future__ import annotations

# Weight of the newest measurement in the running mean.
_NEWEST = 0.3


class PrefillBudget:
    """Rows of prefill for the next step.

    Args:
        seconds: what prefill may add to a step; 0 always gives `most_rows`.
        least_rows: given in any case, so that prefill gets on.
        most_rows: given at most, also before anything is measured.
    """

    def __init__(self, seconds: float, least_rows: int, most_rows: int) -> None:
        self._seconds = seconds
        self._least_rows = min(least_rows, most_rows)
        self._most_rows = most_rows
        self._row_seconds: float | None = None

    @property
    def rows(self) -> int:
        if not self._seconds or not self._row_seconds:
            return self._most_rows
        rows = int(self._seconds / self._row_seconds)
        return max(self._least_rows, min(rows, self._most_rows))

    def note(self, prefill_rows: int, all_rows: int, seconds: float) -> None:
        """Learns from a step. Only steps that are mostly prefill tell what a row of it costs.

        Args:
            prefill_rows: of sequences that had more than their anchor to compute.
            all_rows: rows of the step.
            seconds: the forward pass took.
        """
        if prefill_rows < self._least_rows or 2 * prefill_rows < all_rows:
            return
        cost = seconds / all_rows
        known = self._row_seconds
        self._row_seconds = cost if known is None else known + _NEWEST * (cost - known)
