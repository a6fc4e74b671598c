"""The best low-rank start of the sequential head, by the law of the data. Pure.

V_d drafter vocabulary, D width, R rank, n sampled states.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

# Of the mean eigenvalue: keeps the factor of a covariance of few samples invertible.
_RIDGE = 1e-4


@dataclass(frozen=True, eq=False)
class LowRankHead:
    """logits(h) ~ output @ (reduce @ h), up to a constant of each row.

    Attributes:
        output: [V_d, R].
        reduce: [R, D]; reduced states have unit variance in each direction.
    """

    output: torch.Tensor
    reduce: torch.Tensor


def fit_low_rank(
    lm_head: torch.Tensor,  # [V_d, D]
    states: torch.Tensor,  # [n, D], what the LM head is applied to
    token_weights: torch.Tensor,  # [V_d], how much a token's logit matters; sums to 1
    rank: int,
) -> LowRankHead:
    """Minimises the expected, token-weighted squared error of the logits over the states.

    With C = E[h h^T] = L L^T and W the LM head without what all tokens share (a softmax does not see
    it), the answer is W L projected on the leading right singular vectors of diag(sqrt w) W L.
    """
    width = lm_head.shape[1]
    weights = token_weights.to(torch.float64)[:, None]
    w = lm_head.to(torch.float64)
    w = w - (weights * w).sum(dim=0, keepdim=True)
    h = states.to(torch.float64)
    covariance = h.T @ h / len(h)
    covariance += torch.eye(width, dtype=torch.float64) * (_RIDGE * covariance.diagonal().mean())
    factor = torch.linalg.cholesky(covariance)  # L
    scaled = w @ factor  # [V_d, D]
    _, vectors = torch.linalg.eigh(scaled.T @ (weights * scaled))
    leading = vectors[:, -min(rank, width) :].flip(1)  # [D, R], strongest first
    reduce = torch.linalg.solve_triangular(factor.T, leading, upper=True).T  # V^T L^-1
    output = scaled @ leading
    return LowRankHead(_pad(output, 1, rank), _pad(reduce, 0, rank))


def principal_rows(
    embedding: torch.Tensor,  # [V, D]
    token_weights: torch.Tensor,  # [V], sums to 1
    rank: int,
) -> torch.Tensor:
    """[V, R]: rows in their leading principal directions, unit mean square over the weighted tokens."""
    rows = embedding.to(torch.float64)
    weights = token_weights.to(torch.float64)[:, None]
    rows = rows - (weights * rows).sum(dim=0, keepdim=True)
    _, vectors = torch.linalg.eigh(rows.T @ (weights * rows))
    reduced = rows @ vectors[:, -min(rank, rows.shape[1]) :].flip(1)
    scale = (weights * reduced**2).sum().div(reduced.shape[1]).sqrt()
    return _pad(reduced / scale.clamp_min(1e-12), 1, rank)


def _pad(matrix: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    """Zeros where the rank exceeds the width."""
    short = size - matrix.shape[dim]
    if short > 0:
        shape = list(matrix.shape)
        shape[dim] = short
        matrix = torch.cat([matrix, matrix.new_zeros(shape)], dim=dim)
    return matrix.to(torch.float32)
