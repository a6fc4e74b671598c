"""The losses against slow twins in plain Python."""

from __future__ import annotations

import math

import pytest
import torch

from draft_service.training.losses import (
    NO_COLUMN,
    LossWeights,
    combine,
    cross_entropy,
    kl_divergence,
    l1_distance,
    position_weights,
)

N, K, V = 3, 4, 7
TOLERANCE = 1e-5  # float32 sums of a few terms


def laws(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """log p of V - 2 kept tokens (mass is missing), and a normalised log q."""
    generator = torch.Generator().manual_seed(seed)
    full = torch.log_softmax(torch.randn(N, K, V, generator=generator) * 2, dim=-1)
    log_q = torch.log_softmax(torch.randn(N, K, V - 2, generator=generator), dim=-1)
    return full[..., : V - 2], log_q


def test_l1_counts_the_mass_outside_the_drafters_vocabulary() -> None:
    log_p, log_q = laws()
    found = l1_distance(log_p, log_q)
    for n in range(N):
        for k in range(K):
            p = [math.exp(value) for value in log_p[n, k].tolist()]
            q = [math.exp(value) for value in log_q[n, k].tolist()]
            slow = sum(abs(a - b) for a, b in zip(p, q, strict=True)) + (1 - sum(p))
            assert float(found[n, k]) == pytest.approx(slow, abs=TOLERANCE)
            # Twice the chance of a refusal: accepted mass is sum min(p, q).
            accepted = sum(map(min, p, q))
            assert float(found[n, k]) == pytest.approx(2 * (1 - accepted), abs=TOLERANCE)


def test_kl_is_zero_only_at_the_target() -> None:
    log_p, log_q = laws()
    found = kl_divergence(log_p, log_q)
    pairs = zip(log_p.reshape(-1, V - 2).tolist(), log_q.reshape(-1, V - 2).tolist(), strict=True)
    for value, (p, q) in zip(found.reshape(-1).tolist(), pairs, strict=True):
        slow = sum(math.exp(a) * (a - b) for a, b in zip(p, q, strict=True))
        assert value == pytest.approx(slow, abs=TOLERANCE)
    assert torch.equal(kl_divergence(log_q, log_q), torch.zeros(N, K))


def test_cross_entropy_skips_tokens_that_cannot_be_proposed() -> None:
    _, log_q = laws()
    greedy = torch.tensor([[0, 1, NO_COLUMN, 4]] * N)
    found = cross_entropy(log_q, greedy)
    assert torch.equal(found[:, 2], torch.zeros(N))
    for n in range(N):
        for k in (0, 1, 3):
            assert float(found[n, k]) == pytest.approx(-float(log_q[n, k, greedy[n, k]]), abs=TOLERANCE)


def test_positions_weigh_less_and_less_and_nothing_beyond_the_text() -> None:
    valid = torch.tensor([[True, True, True, True], [True, True, False, False]])
    weights = position_weights(valid, 4.0)
    assert weights[0].tolist() == pytest.approx([math.exp(-j / 4) for j in range(4)])
    assert weights[1].tolist() == pytest.approx([1.0, math.exp(-1 / 4), 0.0, 0.0])


def test_the_parts_are_added_with_their_weights() -> None:
    greedy, law = torch.full((2, 2), 3.0), torch.full((2, 2), 5.0)
    valid = torch.tensor([[True, True], [True, False]])
    found = combine(greedy, law, valid, LossWeights(0.1, 1.0, 4.0))
    assert float(found) == pytest.approx((0.1 * 3 + 5) * (2 + math.exp(-1 / 4)))


@pytest.mark.parametrize("distance", [l1_distance, kl_divergence])
def test_descending_the_distance_reaches_the_target(distance) -> None:  # type: ignore[no-untyped-def]
    _, log_p = laws(1)
    logits = torch.zeros(N, K, V - 2, requires_grad=True)
    optimiser = torch.optim.Adam([logits], lr=0.05)
    for _ in range(400):
        optimiser.zero_grad()
        distance(log_p, torch.log_softmax(logits, dim=-1)).sum().backward()
        optimiser.step()
    left = l1_distance(log_p, torch.log_softmax(logits.detach(), dim=-1))
    assert float(left.max()) < 0.2  # a fixed step size oscillates around an L1 optimum
