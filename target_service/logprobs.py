"""Log-probabilities of tokens under the model's own law: log-softmax of the raw logits, before any
processor, temperature or filter. Float32 (float64 for a float64 model). Pure.

R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class TokenLogprob:
    token_id: int
    logprob: float


@dataclass(frozen=True)
class PositionLogprobs:
    """Of one position: its token, and the most probable ones, best first.

    `chosen` is None for the first prompt token, which no law precedes.
    """

    chosen: TokenLogprob | None
    top: tuple[TokenLogprob, ...] = ()


NO_LAW = PositionLogprobs(None)


def position_logprobs(
    logits: torch.Tensor,  # [R, V]
    tokens: Sequence[int],  # [R]
    num_top: Sequence[int],  # [R]
) -> list[PositionLogprobs]:
    """One entry for each row, whose law decides `tokens[row]`."""
    if not tokens:
        return []
    if logits.dtype != torch.float64:
        logits = logits.float()
    law = torch.log_softmax(logits, dim=-1)
    index = torch.tensor(tokens, device=logits.device)[:, None]
    chosen = law.gather(1, index)[:, 0].tolist()
    most = min(max(num_top), law.shape[-1])
    best = law.topk(most, dim=-1) if most else None
    values = best.values.tolist() if best is not None else [[]] * len(tokens)
    ids = best.indices.tolist() if best is not None else [[]] * len(tokens)
    return [
        PositionLogprobs(
            TokenLogprob(token, chosen[row]),
            tuple(map(TokenLogprob, ids[row][: num_top[row]], values[row][: num_top[row]])),
        )
        for row, token in enumerate(tokens)
    ]
