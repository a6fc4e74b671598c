"""Averages and percentiles. Pure. Nothing is made up for no values: None, never 0 or NaN."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Distribution:
    """Of `num` values, in their unit; `percentiles` in the order asked for."""

    num: int
    mean: float | None
    median: float | None
    std: float | None
    percentiles: tuple[float | None, ...]


def percentile(values: Sequence[float], percent: float) -> float:
    """Nearest rank: the least value that at least `percent` % of the values do not exceed.

    Args:
        values: at least one.
    """
    ordered = sorted(values)
    # Rounded, so that 99 % of 100 is rank 99 in floating point as well.
    rank = math.ceil(round(percent / 100 * len(ordered), 9))
    return ordered[min(max(rank, 1), len(ordered)) - 1]


def describe(values: Sequence[float], percents: Sequence[float]) -> Distribution:
    """The distribution of values, its standard deviation that of the population."""
    if not values:
        return Distribution(0, None, None, None, tuple(None for _ in percents))
    return Distribution(
        len(values),
        statistics.fmean(values),
        statistics.median(values),
        statistics.pstdev(values),
        tuple(percentile(values, percent) for percent in percents),
    )
