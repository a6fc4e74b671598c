"""How the drafter chooses a token: greedy, coupled to the target by shared noise, or by noise of its
own from a truncated law that travels with the token (rejection sampling).

N rows, V_d drafter vocabulary. The law that a token was drawn from is returned with it; nobody
computes it a second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from draft_service.proposal import DraftLaw
from protos.noise import Domain, coupled_choice, row_state


@dataclass(frozen=True)
class Rule:
    """How one row is drawn: greedy without noise, else with it; `max_entries` > 0 truncates the law."""

    temperature: float
    noise_state: tuple[int, int] | None
    max_entries: int = 0

    @classmethod
    def greedy(cls) -> Rule:
        return cls(1.0, None)

    @classmethod
    def coupled(cls, key: bytes, position: int, temperature: float) -> Rule:
        """The rule of one coupled row: 16-byte key, absolute position of the token, temperature > 0."""
        return cls(temperature, row_state(key, Domain.TOKEN, position))

    @classmethod
    def rejection(cls, key: bytes, position: int, temperature: float, max_entries: int) -> Rule:
        """A row whose proposal may be rejected: it shares no noise with the target's coins and draws."""
        return cls(temperature, row_state(key, Domain.DRAFT, position), max_entries)


@dataclass(frozen=True, eq=False)
class Draw:
    """Drawn tokens.

    Attributes:
        tokens: [N] int64 target ids.
        columns: [N] int64 columns of the law.
        log_law: [N, V_d] float32, normalised: what the tokens were drawn from. A greedy row has its
            law at temperature 1, from which the most probable token was taken.
        laws: the truncated law of each row that has one, else None.
    """

    tokens: torch.Tensor
    columns: torch.Tensor
    log_law: torch.Tensor
    laws: tuple[DraftLaw | None, ...]

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
    noisy = [row for row, rule in enumerate(rules) if rule.noise_state is not None]
    if noisy:
        temperatures = torch.tensor([rule.temperature for rule in rules], device=logits.device)
        values = values / temperatures[:, None]
    log_law = torch.log_softmax(values, dim=-1)
    laws: list[DraftLaw | None] = [None] * len(rules)
    cut = [row for row, rule in enumerate(rules) if rule.max_entries]
    if cut:
        sizes = [rules[row].max_entries for row in cut]
        log_law[cut], found = truncated(log_law[cut], sizes, token_ids)
        for row, law in zip(cut, found, strict=True):
            laws[row] = law
    if noisy:
        states = [rule.noise_state for rule in rules if rule.noise_state is not None]
        columns[noisy] = coupled_choice(log_law[noisy], states, token_ids)
    return Draw(token_ids[columns], columns, log_law, tuple(laws))


def truncated(
    log_law: torch.Tensor,  # [R, V_d]
    max_entries: Sequence[int],  # [R]
    token_ids: torch.Tensor,  # [V_d]
) -> tuple[torch.Tensor, list[DraftLaw]]:
    """Each row's law over its most probable columns, and the same numbers as they travel.

    The logarithms [R, V_d] that are drawn from are those of the float32 probabilities that are sent,
    so the verifier's q is the law of the draw and no rounding lies between them.
    """
    sizes = torch.tensor(max_entries, device=log_law.device).clamp(max=log_law.shape[-1])
    best = log_law.topk(int(sizes.max()), dim=-1)
    beyond = torch.arange(best.values.shape[-1], device=log_law.device)[None, :] >= sizes[:, None]
    probabilities = torch.softmax(best.values.masked_fill(beyond, -torch.inf), dim=-1)  # float32
    kept = torch.full_like(log_law, -torch.inf).scatter_(1, best.indices, probabilities.log())
    ids, values = token_ids[best.indices].tolist(), probabilities.tolist()
    return kept, [
        DraftLaw(tuple(ids[row][:size]), tuple(values[row][:size])) for row, size in enumerate(sizes.tolist())
    ]
