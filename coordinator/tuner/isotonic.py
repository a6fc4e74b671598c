"""Isotonic regression: the non-decreasing sequence nearest to given values."""

from __future__ import annotations

from collections.abc import Sequence


def non_decreasing(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Pool adjacent violators (Ayer et al. 1955).

    Args:
        values: [N]; weights: [N], each > 0.

    Returns:
        [N], non-decreasing, with the least weighted squared distance to `values`.
    """
    means: list[float] = []
    masses: list[float] = []
    sizes: list[int] = []
    for value, weight in zip(values, weights, strict=True):
        mean, mass, size = value, weight, 1
        while means and means[-1] > mean:
            before, mass_before = means.pop(), masses.pop()
            mean = (before * mass_before + mean * mass) / (mass_before + mass)
            mass += mass_before
            size += sizes.pop()
        means.append(mean)
        masses.append(mass)
        sizes.append(size)
    return [mean for mean, size in zip(means, sizes, strict=True) for _ in range(size)]
