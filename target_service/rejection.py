"""Rejection sampling (Leviathan et al. 2023), one row at a time and vectorised over R rows. Pure.

The drafter drew its proposal x from q; row by row, x is accepted iff `u < min(1, p(x)/q(x))`, else a
token is drawn from `[p - q]_+` normalised. Coin and residual draw have hash domains of their own, so
they share no random number with the drafter's draw: with a shared one the output is not p.

A proposal that is not accepted has p(x) < q(x), so the residual never gives it again; hence a row's
token equals its proposal exactly when the proposal is accepted, as in the other modes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from protos.noise import Domain, coupled_choice, row_state, uniform

# Residual mass that is rounding: p and q are equal, and p is drawn from instead.
NO_RESIDUAL = 1e-8
_SMALLEST_Q = 1e-20
# How far the probabilities of a law may be from 1 in sum: float32 rounding of up to V terms.
LAW_TOLERANCE = 1e-3


@dataclass(frozen=True)
class TruncatedLaw:
    """q of one position: exactly the ids and float32 probabilities that were drawn from."""

    token_ids: tuple[int, ...]
    probabilities: tuple[float, ...]


def law_problem(proposal: int, law: TruncatedLaw) -> tuple[str, str] | None:
    """Field and reason why a proposal cannot be verified with a law, or None."""
    ids, values = law.token_ids, law.probabilities
    if len(ids) != len(values) or len(set(ids)) != len(ids):
        return "law", f"{len(ids)} ids ({len(set(ids))} of them different) and {len(values)} probabilities"
    if not all(0.0 <= value <= 1.0 for value in values) or abs(sum(values) - 1.0) > LAW_TOLERANCE:
        return "law", f"{len(values)} probabilities with the sum {sum(values)}"
    if proposal not in ids or values[ids.index(proposal)] == 0.0:
        return "law", f"token {proposal} was not drawn from its law"
    return None


@dataclass(frozen=True)
class Draft:
    """A proposal and what it was drawn from."""

    token: int
    law: TruncatedLaw


@dataclass(frozen=True)
class Place:
    """Whose random numbers decide, and where: 16-byte key, absolute position."""

    sampling_key: bytes
    position: int


def dense_laws(laws: Sequence[TruncatedLaw], like: torch.Tensor) -> torch.Tensor:
    """[R, V] probabilities in the type and place of `like` [R, V]; 0 for ids that a law leaves out."""
    dense = torch.zeros_like(like)
    rows = [row for row, law in enumerate(laws) for _ in law.token_ids]
    ids = [token_id for law in laws for token_id in law.token_ids]
    values = [value for law in laws for value in law.probabilities]
    index = (torch.tensor(rows, device=like.device), torch.tensor(ids, device=like.device))
    dense[index] = torch.tensor(values, dtype=torch.float32, device=like.device).to(like.dtype)
    return dense


def is_accepted(p: torch.Tensor, q: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """`u < min(1, p/q)`, strictly: [R] probabilities of the proposals, coins in [0, 1)."""
    ratio = p.double() / q.double().clamp(min=_SMALLEST_Q)
    return u.double() < ratio.clamp(max=1.0)


def residual_law(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """`[p - q]_+` normalised, [R, V]; p itself in rows where nothing is left."""
    rest = (p - q).clamp(min=0.0)
    mass = rest.sum(dim=-1, keepdim=True)
    return torch.where(mass > NO_RESIDUAL, rest / mass.clamp(min=NO_RESIDUAL), p)


def verify_drafts(
    p: torch.Tensor,  # [R, V]
    drafts: Sequence[Draft],  # [R]
    places: Sequence[Place],  # [R]
) -> torch.Tensor:
    """[R] tokens: the proposal where it is accepted, else a draw from the residual."""
    q = dense_laws([draft.law for draft in drafts], p)
    proposals = torch.tensor([draft.token for draft in drafts], device=p.device)
    coins = [uniform(place.sampling_key, Domain.COIN, place.position) for place in places]
    u = torch.tensor(coins, dtype=torch.float64, device=p.device)
    accepted = is_accepted(p.gather(1, proposals[:, None])[:, 0], q.gather(1, proposals[:, None])[:, 0], u)
    states = [row_state(place.sampling_key, Domain.RESIDUAL, place.position) for place in places]
    vocabulary = torch.arange(p.shape[-1], device=p.device)
    redrawn = coupled_choice(residual_law(p, q).log(), states, vocabulary)
    return torch.where(accepted, proposals, redrawn)
