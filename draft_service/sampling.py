"""How the drafter chooses a token: greedy, or coupled to the target by shared noise.

N rows, V_d drafter vocabulary. The law that a token was drawn from is returned with it; nobody
computes it a second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from protos.noise import Domain, coupled_choice, row_state


@dataclass(frozen=True)
class Rule:
    """How one row is drawn: greedy without noise, coupled with it."""

    temperature: float
    noise_state: tuple[int, int] | None

    @classmethod
    def greedy(cls) -> Rule:
        return cls(1.0, None)

    @classmethod
    def coupled(cls, key: bytes, position: int, temperature: float) -> Rule:
        """The rule of one coupled row: 16-byte key, absolute position of the token, temperature > 0."""
        return cls(temperature, row_state(key, Domain.TOKEN, position))


@dataclass(frozen=True, eq=False)
class Draw:
    """Drawn tokens.

    Attributes:
        tokens: [N] int64 target ids.
        columns: [N] int64 columns of the law.
        log_law: [N, V_d] float32, normalised: what the tokens were drawn from. A greedy row has its
            law at temperature 1, from which the most probable token was taken.
    """

    tokens: torch.Tensor
    columns: torch.Tensor
    log_law: torch.Tensor

    @property
    def probabilities(self) -> torch.Tensor:
        """[N] the law's own probability of each token."""
        return self.log_law.gather(1, self.columns[:, None])[:, 0].exp()


def draw(
    logits: torch.Tensor,  # [N, V_d]
    rules: Sequence[Rule],  # [N]
    token_ids: torch.Tensor,  # [V_d]: the target's id of each column
) -> Draw:
    """Draws one token for each row; greedy ties go to the lower column."""
    values = logits.to(torch.float32)
    # With the maximum at 0 no temperature overflows.
    values = values - values.amax(dim=-1, keepdim=True)
    columns = values.argmax(dim=-1)
    coupled = [row for row, rule in enumerate(rules) if rule.noise_state is not None]
    if coupled:
        temperatures = torch.tensor([rule.temperature for rule in rules], device=logits.device)
        values = values / temperatures[:, None]
    log_law = torch.log_softmax(values, dim=-1)
    if coupled:
        states = [rule.noise_state for rule in rules if rule.noise_state is not None]
        columns[coupled] = coupled_choice(log_law[coupled], states, token_ids)
    return Draw(token_ids[columns], columns, log_law)
