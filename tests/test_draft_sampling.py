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


def check_truncated_law(max_entries: int) -> None:
    """20,000 draws follow exactly the ids and probabilities that are sent (pitfall A5, A6)."""
    rules = [Rule.rejection(KEY, position, 0.7, max_entries) for position in range(NUM_DRAWS)]
    drawn = draw(LOGITS.expand(NUM_DRAWS, -1), rules, torch.tensor([40, 30, 20, 10, 0]))
    law = drawn.laws[0]
    assert law is not None
    kept = torch.softmax(LOGITS.topk(max_entries).values / 0.7, dim=-1)
    torch.testing.assert_close(torch.tensor(law.probabilities), kept)
    counts = torch.tensor([float((drawn.tokens == token).sum()) for token in law.token_ids])
    assert int(counts.sum()) == NUM_DRAWS, "a token outside the truncated law was drawn"
    assert chi_square(counts, torch.tensor(law.probabilities)) < CHI_SQUARE_LIMIT


def test_rejection_draws_follow_the_truncated_law() -> None:
    for max_entries in (1, 2, 3, 5):
        check_truncated_law(max_entries)


def test_what_is_sent_is_what_was_drawn_from() -> None:
    # A5: one float32 tensor; no rounding between the two, also with bf16 logits.
    logits = torch.randn(4, 32_000, generator=torch.Generator().manual_seed(2)).to(torch.bfloat16)
    drawn = draw(logits, [Rule.rejection(KEY, row, 1.0, 64) for row in range(4)], torch.arange(32_000))
    for row, law in enumerate(drawn.laws):
        assert law is not None
        sent = torch.tensor(law.probabilities)
        assert torch.equal(sent.log(), drawn.log_law[row, list(law.token_ids)])
        assert int(torch.isfinite(drawn.log_law[row]).sum()) == 64


def test_draft_noise_is_not_the_targets() -> None:
    count = 2000
    own = draw(
        LOGITS.expand(count, -1), [Rule.rejection(KEY, p, 1.0, 5) for p in range(count)], torch.arange(5)
    )
    shared = draw(
        LOGITS.expand(count, -1), [Rule.coupled(KEY, p, 1.0) for p in range(count)], torch.arange(5)
    )
    law = torch.softmax(LOGITS, dim=-1)
    agreement = float((own.tokens == shared.tokens).float().mean())
    assert abs(agreement - float((law * law).sum())) < 0.05  # independent draws
