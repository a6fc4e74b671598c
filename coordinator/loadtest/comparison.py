"""Whether two arms said the same. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.loadtest.samples import Place, Sample
from coordinator.loadtest.sessions import whole_sessions


@dataclass(frozen=True)
class Difference:
    """The first token that differs; `may_be_near_tie` when either side recomputed a lost state."""

    place: Place
    token: int
    may_be_near_tie: bool


@dataclass(frozen=True)
class Equality:
    """Of token ids. Turns behind a difference have different prompts, and are not compared."""

    num_compared: int
    num_equal: int
    differences: tuple[Difference, ...]


def compare_texts(ours: Sequence[Sample], theirs: Sequence[Sample]) -> Equality:
    """Pairs requests by their place; sessions with a failed or cancelled turn are left out."""
    left, right = whole_sessions(ours), whole_sessions(theirs)
    num_compared = num_equal = 0
    differences = []
    for number in sorted(left.keys() & right.keys()):
        for a, b in zip(left[number], right[number], strict=False):
            num_compared += 1
            if a.token_ids != b.token_ids:
                differences.append(_difference(a, b))
                break
            num_equal += 1
    return Equality(num_compared, num_equal, tuple(differences))


def _difference(a: Sample, b: Sample) -> Difference:
    pairs = zip(a.token_ids, b.token_ids, strict=False)
    shorter = min(len(a.token_ids), len(b.token_ids))
    token = next((index for index, (x, y) in enumerate(pairs) if x != y), shorter)
    near = a.finished.ledger.near_tie_possible or b.finished.ledger.near_tie_possible
    return Difference(a.place, token, near)
