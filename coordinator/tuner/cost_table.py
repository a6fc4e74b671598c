"""What a step costs: a monotone table by rows, learned from every step that was measured.

Three levels, each shrunk to the next: the exact number of rows, its bucket (1, 2, 3-4, 5-8, 9-16,
..), and the straight line `a + b rows`, which is only the prior. A second quantity adds in
proportion: the context that is read (target) or the proposals that are drafted (drafter).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.tuner.isotonic import non_decreasing
from coordinator.tuner.running import RunningMean

_WINDOW = 64
# So many measured steps weigh as much as the level above: hardly one.
_CELL_SHRINKAGE = 0.5
_BUCKET_SHRINKAGE = 1.0
# A step far outside what its rows cost before is a pause of the machine; it counts as this much.
_MOST_SURPRISE = 3.0
_TRUSTED_COUNT = 8
# No step is free, not even one that seems to be all context, or too short to be measured.
_LEAST_SECONDS = 1e-6


@dataclass(frozen=True)
class Line:
    """The prior: `a + b rows` seconds."""

    fixed_seconds: float
    row_seconds: float

    def at(self, rows: int) -> float:
        return self.fixed_seconds + self.row_seconds * rows


def bucket_of(rows: int) -> int:
    """0 for one row, 1 for 2, 2 for 3-4, 3 for 5-8, and so on."""
    return (rows - 1).bit_length()


class Cell:
    """Steps of one number of rows: means of their seconds and of the second quantity."""

    def __init__(self) -> None:
        self.seconds = RunningMean(_WINDOW)
        self.extra = RunningMean(_WINDOW)

    @property
    def count(self) -> int:
        return self.seconds.count

    def bare_seconds(self, slope: float) -> float:
        """Without what the second quantity adds."""
        return max(self.seconds.mean - slope * self.extra.mean, 0.0)


class CostTable:
    """Seconds of a step by its rows.

    Invariant: `seconds` does not fall as rows or the second quantity grow.
    """

    def __init__(self, prior: Line) -> None:
        self._prior = prior
        self._cells: dict[int, Cell] = {}
        # Moments about the mean of each cell, so that rows do not pass for the second quantity.
        self._variance = RunningMean(4 * _WINDOW)
        self._covariance = RunningMean(4 * _WINDOW)
        self._table: list[float] = []

    @property
    def knows_slope(self) -> bool:
        """Whether the second quantity was seen to vary."""
        return self._variance.count >= _TRUSTED_COUNT and self._variance.mean > 0.0

    @property
    def slope(self) -> float:
        """Seconds for each unit of the second quantity; 0 until it was seen to vary."""
        if not self.knows_slope:
            return 0.0
        return max(self._covariance.mean / self._variance.mean, 0.0)

    def note(self, rows: int, seconds: float, extra: float = 0.0) -> None:
        """Takes a measured step of `rows` >= 1 rows.

        Args:
            extra: context tokens read, or proposals drafted.
        """
        cell = self._cells.setdefault(rows, Cell())
        if cell.count >= _TRUSTED_COUNT:
            seconds = min(seconds, _MOST_SURPRISE * cell.seconds.mean)
        if cell.count:
            before = extra - cell.extra.mean
            self._variance.note(before * before)
            self._covariance.note(before * (seconds - cell.seconds.mean))
        cell.seconds.note(seconds)
        cell.extra.note(extra)
        self._table = []

    def seconds(self, rows: int, extra: float = 0.0) -> float:
        """What a step of `rows` rows costs; 0 rows cost nothing."""
        if rows <= 0:
            return 0.0
        return self.bare_seconds(rows)[rows] + self.slope * extra

    def measured_seconds(self, rows: int, extra: float = 0.0) -> float:
        """What such steps took, as far as any was measured: without the pull of what was believed before."""
        cell = self._cells.get(rows)
        if cell is None:
            return self.seconds(rows, extra)
        return max(cell.seconds.mean + self.slope * (extra - cell.extra.mean), _LEAST_SECONDS)

    def bare_seconds(self, most_rows: int) -> Sequence[float]:
        """By rows from 0 to `most_rows` at least, without what the second quantity adds."""
        if len(self._table) <= most_rows:
            self._table = self._build(1 << bucket_of(most_rows + 1))
        return self._table

    def cells(self, least_count: int) -> list[int]:
        """The numbers of rows of which at least so many steps are remembered."""
        return sorted(rows for rows, cell in self._cells.items() if cell.count >= least_count)

    def _build(self, most_rows: int) -> list[float]:
        """By rows: isotonic as far as steps were measured, beyond that never below what is before."""
        measured = max(self._cells, default=0)
        ratios, slope = self._bucket_ratios(max(most_rows, measured)), self.slope
        values, weights = [], []
        for rows in range(1, max(most_rows, measured) + 1):
            cell = self._cells.get(rows)
            count, mean = (cell.count, cell.bare_seconds(slope)) if cell else (0, 0.0)
            expected = self._prior.at(rows) * ratios[bucket_of(rows)]
            value = (count * mean + _CELL_SHRINKAGE * expected) / (count + _CELL_SHRINKAGE)
            values.append(max(value, _LEAST_SECONDS))
            weights.append(count + 0.1)
        table = [0.0, *non_decreasing(values[:measured], weights[:measured])]
        for value in values[measured:]:
            table.append(max(value, table[-1]))
        return table

    def _bucket_ratios(self, most_rows: int) -> list[float]:
        """Measured over prior, by bucket.

        Where nothing was measured the prior stands, or less if steps are cheaper than it says: what
        is thought dear is not tried, and so would never be measured.
        """
        slope = self.slope
        counts = [0.0] * (bucket_of(most_rows) + 1)
        sums = [0.0] * len(counts)
        for rows, cell in self._cells.items():
            counts[bucket_of(rows)] += cell.count
            sums[bucket_of(rows)] += cell.count * cell.bare_seconds(slope) / self._prior.at(rows)
        scale = min(sum(sums) / sum(counts), 1.0) if sum(counts) else 1.0
        return [
            (total + _BUCKET_SHRINKAGE * scale) / (count + _BUCKET_SHRINKAGE)
            for total, count in zip(sums, counts, strict=True)
        ]
