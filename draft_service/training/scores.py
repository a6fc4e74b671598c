"""What walks add up to: tau, and the conditional acceptance of each proposal. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from draft_service.training.walk import Walk


@dataclass(frozen=True)
class Score:
    """Of one set of texts at one temperature.

    Attributes:
        num_texts, num_rounds, num_tokens: of the walks; tokens are those that rounds committed.
        tau: tokens a round.
        conditional: [K] share of accepted proposals j among rounds that asked for j and accepted j - 1;
            None where there was none.
    """

    name: str
    temperature: float
    num_texts: int
    num_rounds: int
    num_tokens: int
    tau: float | None
    conditional: tuple[float | None, ...]

    def as_record(self) -> dict[str, Any]:
        return {**asdict(self), "conditional": list(self.conditional)}


def score(name: str, temperature: float, walks: Iterable[Walk], num_proposals: int) -> Score:
    """Adds up finished walks."""
    done = list(walks)
    rounds = [one for walk in done for one in walk.rounds]
    num_tokens = sum(walk.num_tokens for walk in done)
    return Score(
        name=name,
        temperature=temperature,
        num_texts=len(done),
        num_rounds=len(rounds),
        num_tokens=num_tokens,
        tau=num_tokens / len(rounds) if rounds else None,
        conditional=conditional([(len(one.proposals), one.accepted) for one in rounds], num_proposals),
    )


def conditional(rounds: Sequence[tuple[int, int]], num_proposals: int) -> tuple[float | None, ...]:
    """a_j for j = 1..K from (proposals verified, accepted) of each round.

    Only rounds that verified j and reached it count: a plain average of A is censored by v.
    """
    found: list[float | None] = []
    for j in range(1, num_proposals + 1):
        reached = [accepted for verified, accepted in rounds if verified >= j and accepted >= j - 1]
        found.append(sum(accepted >= j for accepted in reached) / len(reached) if reached else None)
    return tuple(found)
