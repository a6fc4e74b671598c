"""The target's law and its draws, against slow twins and chi-square."""

from __future__ import annotations

import math

import pytest
import torch

from target_service import sampling
from target_service.commands import SamplingParams
from target_service.sampling import RowParams, choose, filtered_log_law
from tests.fakes import KEY

# Chi-square at p = 1e-4 (seeds are fixed; a right build passes by a wide margin).
CRITICAL = {1: 15.1, 2: 18.4, 3: 21.1, 4: 23.5}
P = torch.tensor([0.30, 0.25, 0.20, 0.15, 0.10])
DRAWS = 20_000


def rows(count: int, **params: object) -> list[RowParams]:
    settings = SamplingParams(**{"temperature": 1.0, **params})  # type: ignore[arg-type]
    return [RowParams(settings, KEY, position) for position in range(count)]


def chi_square(counts: torch.Tensor, law: torch.Tensor) -> float:
    expected = law * counts.sum()
    kept = law > 0
    assert int(counts[~kept].sum()) == 0, "a token of probability 0 was drawn"
    return float(((counts - expected)[kept] ** 2 / expected[kept]).sum())


def draw_counts(law: torch.Tensor, count: int = DRAWS, **params: object) -> torch.Tensor:
    logits = law.log().expand(count, -1)
    tokens = sampling.choose(logits, rows(count, **params)).tokens
    return torch.bincount(tokens, minlength=len(law)).float()


def test_coupled_draws_follow_p() -> None:
    assert chi_square(draw_counts(P), P) < CRITICAL[4]


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_temperature(temperature: float) -> None:
    law = torch.softmax(P.log() / temperature, dim=0)
    assert chi_square(draw_counts(P, temperature=temperature), law) < CRITICAL[4]


@pytest.mark.parametrize(
    ("params", "law"),
    [
        ({"top_k": 2}, [0.30, 0.25, 0, 0, 0]),
        ({"top_p": 0.5}, [0.30, 0.25, 0, 0, 0]),
        ({"top_p": 0.6}, [0.30, 0.25, 0.20, 0, 0]),
        ({"min_p": 0.6}, [0.30, 0.25, 0.20, 0, 0]),
        ({"top_k": 3, "top_p": 0.7}, [0.30, 0.25, 0, 0, 0]),
    ],
)
def test_filters(params: dict[str, object], law: list[float]) -> None:
    expected = torch.tensor(law) / sum(law)
    assert torch.allclose(filtered_log_law(P.log()[None], rows(1, **params)).exp()[0], expected)
    degrees = int((expected > 0).sum()) - 1
    assert chi_square(draw_counts(P, **params), expected) < CRITICAL[degrees]


def test_top_p_keeps_at_least_the_best() -> None:
    law = filtered_log_law(P.log()[None], rows(1, top_p=1e-9)).exp()[0]
    assert law.tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]


def test_rows_are_independent_of_their_batch() -> None:
    # A12: seeded, greedy and filtered rows side by side equal each alone.
    torch.manual_seed(0)
    logits = torch.randn(6, 11)
    mixed = [
        RowParams(SamplingParams(temperature=0.0), KEY, 3),
        RowParams(SamplingParams(temperature=1.0), KEY, 3),
        RowParams(SamplingParams(temperature=0.7, top_k=3), bytes(16), 4),
        RowParams(SamplingParams(temperature=1.3, top_p=0.4), KEY, 5),
        RowParams(SamplingParams(temperature=1.0, min_p=0.2), KEY, 6),
        RowParams(SamplingParams(temperature=0.0), bytes(16), 7),
    ]
    together = choose(logits, mixed)
    for i, row in enumerate(mixed):
        alone = choose(logits[i : i + 1], [row])
        assert int(alone.tokens[0]) == int(together.tokens[i])


def test_greedy_ties_go_to_the_lower_id() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0]])
    assert choose(logits, [RowParams(SamplingParams(), KEY, 0)]).tokens.tolist() == [1]


def test_the_law_is_the_one_drawn_from() -> None:
    settings = [RowParams(SamplingParams(temperature=0.5), KEY, 1), RowParams(SamplingParams(), KEY, 1)]
    choices = choose(P.log().expand(2, -1), settings)
    assert choices.log_law is not None
    assert choices.log_law.dtype == torch.float32
    assert torch.allclose(choices.log_law[0].exp(), torch.softmax(P.log() / 0.5, 0))
    assert choices.log_law[1].exp().tolist() == [1.0, 0, 0, 0, 0]


def test_bf16_logits_give_a_float32_law() -> None:
    # A5: the law is computed in float32 before the softmax, not rounded after it.
    logits = torch.randn(1, 1000, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    law = filtered_log_law(logits, rows(1))
    assert law.dtype == torch.float32
    assert math.isclose(float(law.exp().sum()), 1.0, abs_tol=1e-6)
