"""The target's law and its decisions, vectorised over the R rows of a step. Pure.

Whoever draws a token also returns the law it was drawn from; nobody recomputes a distribution.
The law is float32 (float64 for a float64 model, which only tests use).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from protos.noise import Domain, coupled_choice, row_state
from target_service.commands import SamplingParams
from target_service.rejection import Draft, Place, verify_drafts
from target_service.verification import NO_TOKEN


@dataclass(frozen=True)
class RowParams:
    """How one row decides: parameters, the request's key, the position that is decided, and in
    rejection mode the proposal for it."""

    params: SamplingParams
    sampling_key: bytes
    position: int
    draft: Draft | None = None


@dataclass(frozen=True, eq=False)
class Choices:
    tokens: torch.Tensor  # [R] int64
    log_law: torch.Tensor | None  # [R, V]; None when every row is greedy (the law is one-hot)


def _column(rows: Sequence[RowParams], name: str, logits: torch.Tensor) -> torch.Tensor:
    values = [getattr(row.params, name) for row in rows]
    return torch.tensor(values, dtype=logits.dtype, device=logits.device)[:, None]


def _keep_top_k(log_law: torch.Tensor, rows: Sequence[RowParams]) -> torch.Tensor:
    vocab_size = log_law.shape[-1]
    sizes = [row.params.top_k if row.params.top_k > 0 else vocab_size for row in rows]
    k = torch.tensor([min(size, vocab_size) for size in sizes], device=log_law.device)
    ordered = log_law.topk(int(k.max()), dim=-1).values  # [R, max k], descending
    threshold = ordered.gather(1, k[:, None] - 1)
    return log_law.masked_fill(log_law < threshold, -torch.inf)


def _keep_top_p(log_law: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    # A token stays while the mass strictly before it, in descending order, is below top_p; so the
    # first token always stays. Equal probabilities keep the lower id first (stable sort).
    ordered, order = log_law.sort(dim=-1, descending=True, stable=True)
    mass = ordered.softmax(dim=-1)
    before = mass.cumsum(dim=-1) - mass
    dropped = torch.zeros_like(before, dtype=torch.bool).scatter_(1, order, before >= top_p)
    return log_law.masked_fill(dropped & (top_p < 1.0), -torch.inf)


def filtered_log_law(logits: torch.Tensor, rows: Sequence[RowParams]) -> torch.Tensor:
    """log p after temperature, top-k, top-p and min-p, in this order, normalised.

    Args:
        logits: [R, V] raw logits.
        rows: R rows with temperature > 0.

    Returns:
        [R, V] float32 (float64 for float64 logits); filtered tokens are -inf.
    """
    if logits.dtype != torch.float64:
        logits = logits.float()
    log_law = torch.log_softmax(logits / _column(rows, "temperature", logits), dim=-1)
    filtered = False
    if any(row.params.top_k > 0 for row in rows):
        log_law, filtered = _keep_top_k(log_law, rows), True
    if any(row.params.top_p < 1.0 for row in rows):
        log_law, filtered = _keep_top_p(log_law, _column(rows, "top_p", logits)), True
    if any(row.params.min_p > 0.0 for row in rows):
        floor = log_law.amax(dim=-1, keepdim=True) + _column(rows, "min_p", logits).log()
        log_law, filtered = log_law.masked_fill(log_law < floor, -torch.inf), True
    return torch.log_softmax(log_law, dim=-1) if filtered else log_law


def choose(logits: torch.Tensor, rows: Sequence[RowParams]) -> Choices:
    """Decides one token for each row: argmax at temperature 0 (ties to the lower id), else the
    coupled draw, a function of (key, prefix) alone, or that of rejection sampling.

    Args:
        logits: [R, V] raw or processed logits.
        rows: R rows.
    """
    tokens = torch.argmax(logits, dim=-1)
    drawn = [i for i, row in enumerate(rows) if row.params.temperature > 0.0]
    if not drawn:
        return Choices(tokens, None)
    some = [rows[i] for i in drawn]
    index = torch.tensor(drawn, device=logits.device)
    log_law = filtered_log_law(logits[index], some)
    tokens[index] = _draw(log_law, some)
    one_hot = torch.full_like(logits, -torch.inf, dtype=log_law.dtype)
    one_hot.scatter_(1, tokens[:, None], 0.0)
    one_hot[index] = log_law
    return Choices(tokens, one_hot)


def _draw(log_law: torch.Tensor, rows: Sequence[RowParams]) -> torch.Tensor:
    """One token for each row of [R, V]; a row of rejection mode without a draft is a bonus row."""
    states = [
        row_state(row.sampling_key, Domain.BONUS if row.params.uses_rejection else Domain.TOKEN, row.position)
        for row in rows
    ]
    vocabulary = torch.arange(log_law.shape[-1], device=log_law.device)
    tokens = coupled_choice(log_law, states, vocabulary)
    drafted = [(i, row.draft) for i, row in enumerate(rows) if row.draft is not None]
    if drafted:
        index = torch.tensor([i for i, _ in drafted], device=log_law.device)
        places = [Place(rows[i].sampling_key, rows[i].position) for i, _ in drafted]
        tokens[index] = verify_drafts(log_law[index].exp(), [draft for _, draft in drafted], places)
    return tokens


def without_dead_ends(tokens: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """[R] tokens with NO_TOKEN in rows of [R, V] whose logits are all -inf."""
    return tokens.masked_fill(logits.amax(dim=-1) == -torch.inf, NO_TOKEN)
