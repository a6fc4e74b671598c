"""The losses of training, pure.

N anchors, K proposals, V_d drafter vocabulary. `log_p` is the target's law at temperature 1 on the
drafter's vocabulary: log-probabilities under the whole vocabulary, so a row may sum to less than one.
`log_q` is the drafter's law. Losses are [N, K], one for each position, unreduced.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

NO_COLUMN = -1


@dataclass(frozen=True)
class LossWeights:
    """How the parts are added: greedy * CE + law * (KL or L1), times exp(-(j - 1) / position_decay)."""

    greedy: float = 0.1
    law: float = 1.0
    position_decay: float = 4.0


def cross_entropy(
    log_q: torch.Tensor,  # [N, K, V_d]
    greedy: torch.Tensor,  # [N, K] column of the target's argmax, NO_COLUMN outside the vocabulary
) -> torch.Tensor:
    """-log q of the target's greedy token; 0 where the drafter's vocabulary lacks it."""
    taken = log_q.gather(-1, greedy.clamp_min(0)[..., None])[..., 0]
    return -taken.masked_fill(greedy == NO_COLUMN, 0.0)


def l1_distance(log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    """sum |p - q| over the whole vocabulary: twice the probability that a draw from q is refused."""
    p = log_p.exp()
    outside = (1.0 - p.sum(dim=-1)).clamp_min(0.0)
    return (p - log_q.exp()).abs().sum(dim=-1) + outside


def kl_divergence(log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    """sum p (log p - log q) over the drafter's vocabulary."""
    return (log_p.exp() * (log_p - log_q)).sum(dim=-1)


def position_weights(
    valid: torch.Tensor,  # [N, K] bool: the text goes on to this position
    decay: float,
) -> torch.Tensor:
    """exp(-(j - 1) / decay) for proposal j = 1.., 0 beyond the text; [N, K] float32."""
    steps = torch.arange(valid.shape[1], device=valid.device, dtype=torch.float32)
    return torch.exp(-steps / decay) * valid


def combine(
    greedy_loss: torch.Tensor,  # [N, K]
    law_loss: torch.Tensor,  # [N, K]
    valid: torch.Tensor,  # [N, K]
    weights: LossWeights,
) -> torch.Tensor:
    """The weighted sum over positions and anchors, a scalar; the caller divides by its anchors."""
    parts = weights.greedy * greedy_loss + weights.law * law_loss
    return (parts * position_weights(valid, weights.position_decay)).sum()
