"""The drafter's draws follow the law that they return."""

from __future__ import annotations

import torch

from draft_service.sampling import Rule, draw
from protos.noise import Domain, coupled_choice, row_state

NUM_DRAWS = 20_000
# 4 degrees of freedom, p about 1e-4.
CHI_SQUARE_LIMIT = 23.5
LOGITS = torch.tensor([0.5, 1.5, -1.0, 0.0, 0.8])
KEY = bytes(range(16))


def chi_square(counts: torch.Tensor, law: torch.Tensor) -> float:
    expected = law.double() * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def many(temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    rules = [Rule.coupled(KEY, position, temperature) for position in range(NUM_DRAWS)]
    drawn = draw(LOGITS.expand(NUM_DRAWS, -1), rules, torch.arange(5))
    return torch.bincount(drawn.tokens, minlength=5), drawn.log_law[0].exp()


def test_coupled_draws_follow_the_returned_law() -> None:
    for temperature in (1.0, 0.5, 2.0):
        counts, law = many(temperature)
        torch.testing.assert_close(law, torch.softmax(LOGITS / temperature, dim=-1))
        assert chi_square(counts, law) < CHI_SQUARE_LIMIT


def test_a_law_recorded_at_another_temperature_is_caught() -> None:
    counts, _ = many(0.5)
    assert chi_square(counts, torch.softmax(LOGITS, dim=-1)) > CHI_SQUARE_LIMIT


def test_greedy_ties_go_to_the_lower_id() -> None:
    drawn = draw(torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]]), [Rule.greedy()] * 2, torch.arange(3))
    assert drawn.tokens.tolist() == [1, 0]


def test_greedy_takes_the_largest_logit_even_where_the_law_rounds_alike() -> None:
    above = torch.nextafter(torch.tensor(1e4), torch.tensor(2e4))
    drawn = draw(torch.stack([torch.tensor(1e4), above])[None], [Rule.greedy()], torch.arange(2))
    assert drawn.tokens.tolist() == [1]


def test_modes_mix_in_one_batch() -> None:
    ids = torch.tensor([9, 8, 7, 6, 5])
    rules = [Rule.coupled(KEY, 3, 0.7), Rule.greedy(), Rule.coupled(KEY, 4, 1.3)]
    drawn = draw(LOGITS.expand(3, -1), rules, ids)
    for row, rule in enumerate(rules):
        alone = draw(LOGITS[None], [rule], ids)
        assert drawn.tokens[row] == alone.tokens[0]
        torch.testing.assert_close(drawn.log_law[row], alone.log_law[0])
    torch.testing.assert_close(drawn.log_law[1], torch.log_softmax(LOGITS, dim=-1))


def test_the_probability_is_read_from_the_law() -> None:
    drawn = draw(LOGITS[None], [Rule.coupled(KEY, 11, 0.9)], torch.arange(5))
    column = int(drawn.columns[0])
    assert drawn.probabilities[0] == drawn.log_law[0, column].exp()
    assert drawn.log_law.dtype == torch.float32


def test_an_equal_law_proposes_exactly_what_the_target_draws() -> None:
    ids = torch.arange(5)
    for position in range(200):
        drawn = draw(LOGITS[None], [Rule.coupled(KEY, position, 1.0)], ids)
        target = coupled_choice(
            torch.log_softmax(LOGITS, dim=-1)[None], [row_state(KEY, Domain.TOKEN, position)], ids
        )
        assert drawn.tokens[0] == target[0]


def test_float16_logits_are_drawn_in_float32() -> None:
    drawn = draw(LOGITS.half()[None], [Rule.greedy()], torch.arange(5))
    assert drawn.log_law.dtype == torch.float32
