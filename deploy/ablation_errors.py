"""Standard errors of tau over texts, by leaving out one text at a time. Pure.

Texts are the unit: rounds of one text are not independent. Arms walk the same texts, so a difference of
two arms is far better known than either tau.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Counts:
    """Of one walked text: tokens that rounds committed, and rounds."""

    tokens: int
    rounds: int


def tau(texts: Sequence[Counts]) -> float:
    """Tokens a round."""
    return sum(one.tokens for one in texts) / sum(one.rounds for one in texts)


def tau_error(texts: Sequence[Counts]) -> float | None:
    """The standard error of tau; None for a single text."""
    return _error([tau(rest) for rest in _without_each(texts)])


def difference_error(ours: Sequence[Counts], theirs: Sequence[Counts]) -> float | None:
    """The standard error of tau(ours) - tau(theirs) on the same texts in the same order."""
    pairs = zip(_without_each(ours), _without_each(theirs), strict=True)
    return _error([tau(a) - tau(b) for a, b in pairs])


def _without_each(texts: Sequence[Counts]) -> list[Sequence[Counts]]:
    if len(texts) < 2:
        return []
    return [[*texts[:i], *texts[i + 1 :]] for i in range(len(texts))]


def _error(values: Sequence[float]) -> float | None:
    count = len(values)
    if not count:
        return None
    mean = sum(values) / count
    return math.sqrt((count - 1) / count * sum((one - mean) ** 2 for one in values))
