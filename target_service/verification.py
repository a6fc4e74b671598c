"""Which proposals stand. Pure; all modes share it, since each compares with the target's own choice
for the row: row i decides position n+1+i and proposal i+1 is for the same position. (In rejection
mode the choice of a row is its proposal if that is accepted, else the token drawn instead.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from target_service.commands import FinishReason

# The choice of a row whose masks leave no token.
NO_TOKEN = -1


@dataclass(frozen=True)
class Limits:
    """What ends a request at the target: ids that stop it, and tokens it may still commit."""

    stop_ids: frozenset[int]
    remaining: int  # >= 1


@dataclass(frozen=True)
class Decision:
    """The outcome of a round: `tokens` are committed, `num_accepted` of them were proposals.

    Without tokens the text is at a dead end: no token is possible at its next position.
    """

    tokens: tuple[int, ...]
    num_accepted: int
    finish_reason: FinishReason | None


def accepted_prefix(choices: Sequence[int], proposals: Sequence[int]) -> int:
    """A: the length of the longest prefix of proposals that equals the target's choices."""
    for count, (choice, proposal) in enumerate(zip(choices, proposals, strict=False)):
        if choice != proposal:
            return count
    return len(proposals)


def decide(choices: Sequence[int], proposals: Sequence[int], limits: Limits) -> Decision:
    """Accepts a prefix, appends the target's own token, and cuts at a stop id or the limit.

    A stop id inside the committed block wins over the limit when it comes no later. A row without a
    possible token ends the block before it, as if there had been no proposal for it.

    Args:
        choices: the target's token for each of the v = len(proposals) + 1 rows, or NO_TOKEN.
        proposals: v - 1 tokens.
        limits: see `Limits`.
    """
    num_accepted = accepted_prefix(choices, proposals)
    tokens = tuple(choices[: num_accepted + 1])
    if tokens[-1] == NO_TOKEN:
        tokens, num_accepted = tokens[:-1], max(num_accepted - 1, 0)
        if not tokens:
            return Decision((), 0, None)
    for count, token in enumerate(tokens[: limits.remaining], start=1):
        if token in limits.stop_ids:
            return Decision(tokens[:count], min(num_accepted, count), FinishReason.STOP)
    if len(tokens) >= limits.remaining:
        tokens = tokens[: limits.remaining]
        return Decision(tokens, min(num_accepted, len(tokens)), FinishReason.LENGTH)
    return Decision(tokens, num_accepted, None)
