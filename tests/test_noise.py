"""The shared random numbers: test vectors, edge values, and the law of what is drawn."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protos import noise
from protos.noise import Domain, coupled_choice, exponential, hash32, hash_rows, row_state, uniform

KEY = bytes(range(16))
# 99.9 % quantiles of chi-square by degrees of freedom.
CHI_SQUARE_999 = {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47, 7: 24.32, 15: 37.70, 24: 51.18}


def chi_square(counts: torch.Tensor, law: torch.Tensor) -> float:
    expected = law / law.sum() * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def draws(law: list[float], num_draws: int, domain: Domain = Domain.TOKEN, key: bytes = KEY) -> torch.Tensor:
    """[num_draws] one draw at each position 0, 1, .."""
    states = [row_state(key, domain, position) for position in range(num_draws)]
    log_law = torch.log(torch.tensor(law)).expand(num_draws, -1)
    return coupled_choice(log_law, states, torch.arange(len(law)))


@pytest.mark.parametrize(
    ("key", "domain", "position", "token", "expected"),
    [
        (bytes(16), Domain.TOKEN, 0, 0, 0x6A7A07C8),
        (bytes(range(16)), Domain.TOKEN, 7, 42, 0xE008F9BD),
        (b"\xff" * 16, Domain.BONUS, 2**40, 49151, 0xC0B6C61C),
    ],
)
def test_vectors_of_version_1(key: bytes, domain: Domain, position: int, token: int, expected: int) -> None:
    assert (noise.NOISE_NAME, noise.NOISE_VERSION) == ("blake2b-lowbias32x2", 1)
    assert hash32(key, domain, position, token) == expected
    assert hash_rows([row_state(key, domain, position)], torch.tensor([token])).item() == expected


@settings(deadline=None, max_examples=200, derandomize=True)
@given(
    key=st.binary(min_size=16, max_size=16),
    domain=st.sampled_from(Domain),
    position=st.integers(0, 2**63 - 1),
    tokens=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=8),
)
def test_rows_equal_the_scalar_twin(key: bytes, domain: Domain, position: int, tokens: list[int]) -> None:
    rows = hash_rows([row_state(key, domain, position)], torch.tensor(tokens))
    assert rows.dtype == torch.int64
    assert rows[0].tolist() == [hash32(key, domain, position, token) for token in tokens]


def test_every_row_of_a_batch_equals_its_own() -> None:
    states = [row_state(KEY, Domain.TOKEN, position) for position in (0, 1, 2**40)]
    ids = torch.tensor([0, 5, 49151])
    batch = hash_rows(states, ids)
    for row, state in zip(batch, states, strict=True):
        assert torch.equal(row, hash_rows([state], ids)[0])


def test_no_rows_give_no_hashes() -> None:
    assert hash_rows([], torch.arange(5)).shape == (0, 5)


@pytest.mark.parametrize("key", [b"", bytes(15), bytes(17)])
def test_a_key_of_another_length_is_refused(key: bytes) -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        row_state(key, Domain.TOKEN, 0)


def test_a_negative_position_is_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        row_state(KEY, Domain.TOKEN, -1)


def edge_hashes() -> torch.Tensor:
    return torch.tensor([0, 1, 2**31, *range(2**32 - 129, 2**32)])


def test_edge_values_give_finite_positive_variates() -> None:
    """Float32 rounds (h + .5) 2^-32 to 1 for h >= 2^32 - 128; unclamped, E would be infinite there."""
    e = noise.exponential(edge_hashes())
    assert e.dtype == torch.float32
    assert bool(torch.isfinite(e).all())
    assert bool((e > 0).all())
    assert bool((e.diff()[:2] > 0).all())
    assert bool((e.diff() >= 0).all())


def test_edge_values_are_near_the_float64_formula() -> None:
    h = torch.tensor([0, 1, 2**16, 2**31, 2**32 - 2**20])
    exact = -torch.log1p(-(h.double() + 0.5) * 2.0**-32)
    assert torch.allclose(exponential(h).double(), exact, rtol=1e-5, atol=0)


def test_edge_values_never_choose_an_impossible_token() -> None:
    """Whatever the noise of a column is, p = 0 loses to p > 0."""
    e = noise.exponential(edge_hashes())
    for impossible in e:
        for possible in (e[0], e[-1]):
            scores = torch.stack([torch.tensor(-math.inf), torch.tensor(math.log(1e-30))]) - torch.log(
                torch.stack([impossible, possible])
            )
            assert int(scores.argmax()) == 1


@pytest.mark.parametrize(
    "law", [[0.5, 0.3, 0.2], [0.25] * 4, [0.9, 0.05, 0.03, 0.01, 0.01], [1 / 16] * 16], ids=len
)
@pytest.mark.parametrize("domain", [Domain.TOKEN, Domain.DRAFT])
def test_choices_follow_the_law(law: list[float], domain: Domain) -> None:
    counts = torch.bincount(draws(law, 20_000, domain), minlength=len(law)).float()
    assert chi_square(counts, torch.tensor(law)) < CHI_SQUARE_999[len(law) - 1]


def test_choices_follow_the_law_over_keys_at_one_position() -> None:
    law = torch.tensor([0.5, 0.3, 0.2])
    states = [row_state(i.to_bytes(16, "little"), Domain.TOKEN, 3) for i in range(20_000)]
    chosen = coupled_choice(law.log().expand(20_000, 3), states, torch.arange(3))
    assert chi_square(torch.bincount(chosen, minlength=3).float(), law) < CHI_SQUARE_999[2]


def test_a_law_need_not_be_normalised() -> None:
    states = [row_state(KEY, Domain.TOKEN, position) for position in range(500)]
    log_law = torch.log(torch.tensor([0.2, 0.5, 0.3])).expand(500, 3)
    ids = torch.arange(3)
    assert torch.equal(coupled_choice(log_law, states, ids), coupled_choice(log_law + 3.0, states, ids))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((KEY, Domain.TOKEN, 0), (KEY, Domain.TOKEN, 1)),
        ((KEY, Domain.TOKEN, 0), (KEY, Domain.DRAFT, 0)),
        ((KEY, Domain.COIN, 0), (KEY, Domain.RESIDUAL, 0)),
    ],
    ids=["neighbouring positions", "domains", "more domains"],
)
def test_neighbouring_draws_are_independent(
    first: tuple[bytes, Domain, int], second: tuple[bytes, Domain, int]
) -> None:
    num_draws, size = 20_000, 5
    law = torch.full((num_draws, size), 1.0 / size).log()
    chosen = []
    for key, domain, offset in (first, second):
        states = [row_state(key, domain, 2 * i + offset) for i in range(num_draws)]
        chosen.append(coupled_choice(law, states, torch.arange(size)))
    joint = torch.bincount(chosen[0] * size + chosen[1], minlength=size * size).float()
    assert chi_square(joint, torch.full((size * size,), 1.0)) < CHI_SQUARE_999[size * size - 1]


def test_neighbouring_tokens_are_independent() -> None:
    states = [row_state(KEY, Domain.TOKEN, position) for position in range(20_000)]
    high = hash_rows(states, torch.tensor([10, 11])) >= 2**31
    joint = torch.bincount(high[:, 0] * 2 + high[:, 1], minlength=4).float()
    assert chi_square(joint, torch.full((4,), 1.0)) < CHI_SQUARE_999[3]


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    assert not bool((draws([0.0, 0.7, 0.0, 0.3, 0.0], 20_000) % 2 == 0).any())


@pytest.mark.parametrize("only", [0, 2, 4])
def test_a_one_hot_law_is_always_drawn(only: int) -> None:
    law = [float(token == only) for token in range(5)]
    assert bool((draws(law, 5_000) == only).all())


def test_the_choice_depends_on_the_target_ids_of_the_columns() -> None:
    """A reduced vocabulary draws what the full one would draw among the same tokens."""
    ids = torch.tensor([7, 3, 11])
    states = [row_state(KEY, Domain.TOKEN, position) for position in range(2_000)]
    full = torch.full((2_000, 16), -math.inf)
    full[:, ids] = math.log(1 / 3)
    in_full = coupled_choice(full, states, torch.arange(16))
    in_reduced = ids[coupled_choice(torch.zeros(2_000, 3), states, ids)]
    assert torch.equal(in_full, in_reduced)


def test_float64_laws_draw_the_same_tokens() -> None:
    states = [row_state(KEY, Domain.TOKEN, position) for position in range(2_000)]
    law = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log().expand(2_000, 3)
    ids = torch.arange(3)
    assert torch.equal(coupled_choice(law, states, ids), coupled_choice(law.float(), states, ids))


def test_coins_are_uniform_and_inside_the_open_interval() -> None:
    coins = torch.tensor([uniform(KEY, Domain.COIN, position) for position in range(20_000)])
    assert bool(((coins > 0) & (coins < 1)).all())
    counts = torch.bincount((coins * 16).long(), minlength=16).float()
    assert chi_square(counts, torch.full((16,), 1.0)) < CHI_SQUARE_999[15]
