"""Whether two decodings of one prompt are the same text, up to near-ties. Pure but for the arms.

Float32 sums depend on how many rows a step has, so two logits that are equal up to rounding may
change places. Such a place is excused only when an independent computation shows the tie; the
comparison then goes on from the prefix of the plain decoding.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

NEAR_TIE_GAP = 1e-3  # float32 logits of row counts 1 and 9 differ by up to 1.6e-4
MOST_NEAR_TIES = 3 / 1000  # of the compared tokens


@dataclass(frozen=True)
class NearTie:
    """A place where the two best tokens are equal up to rounding."""

    index: int
    expected: int
    got: int
    gap: float


@dataclass(frozen=True)
class Comparison:
    """One prompt in one arm. `mismatch` says what differs without an excuse; empty when nothing does."""

    num_tokens: int
    near_ties: tuple[NearTie, ...] = ()
    mismatch: str = ""


def first_difference(expected: Sequence[int], got: Sequence[int]) -> int | None:
    """Index of the first difference, a missing token included; None when equal."""
    for index, (a, b) in enumerate(zip(expected, got, strict=False)):
        if a != b:
            return index
    return None if len(expected) == len(got) else min(len(expected), len(got))


async def compare(
    expected: Sequence[int],
    got: Sequence[int],
    continue_from: Callable[[int], Awaitable[Sequence[int]]],
    gap_at: Callable[[int], float],
) -> Comparison:
    """Compares an arm's ids with those of plain decoding.

    Args:
        expected: ids of plain decoding.
        got: ids of the arm.
        continue_from: what the arm decodes after `expected[:n]`, as long as it goes on.
        gap_at: gap of the two best tokens at index n after `expected[:n]`, computed independently.
    """
    result = Comparison(len(expected))
    while (index := first_difference(expected, got)) is not None:
        if index >= min(len(expected), len(got)):
            return replace(result, mismatch=f"{len(got)} tokens, expected {len(expected)}")
        gap = gap_at(index)
        where = f"index {index}: {got[index]}, expected {expected[index]}, gap {gap:.2e}"
        if not gap < NEAR_TIE_GAP:
            return replace(result, mismatch=where)
        tie = NearTie(index, expected[index], got[index], gap)
        result = replace(result, near_ties=(*result.near_ties, tie))
        prefix = index + 1
        if prefix == len(expected):
            break
        got = [*expected[:prefix], *await continue_from(prefix)]
    return result


def is_passed(comparisons: Sequence[Comparison]) -> bool:
    """No unexcused difference, and few enough near-ties."""
    num_tokens = sum(c.num_tokens for c in comparisons)
    num_ties = sum(len(c.near_ties) for c in comparisons)
    return not any(c.mismatch for c in comparisons) and num_ties <= MOST_NEAR_TIES * num_tokens
