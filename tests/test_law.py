"""The law of what is emitted, over whole rounds on a table target (pitfalls A3, A4, A10 to A12, H2).

20,000 tokens by chi-square with fixed keys: whichever proposals are offered, coupled text follows p
at every place of a block: accepted, corrected and bonus tokens alike.
"""

from __future__ import annotations

import pytest
import torch

from draft_service import sampling as draft_sampling
from draft_service.sampling import Rule
from target_service import commands as c
from target_service import sampling as target_sampling
from target_service.sampling import RowParams
from tests.fakes import KEY, params, table_engine

P = torch.tensor([0.30, 0.25, 0.20, 0.15, 0.10])
Q = torch.tensor([0.10, 0.15, 0.20, 0.25, 0.30])
DRAWS = 20_000
TEXTS = 50
TOKENS = DRAWS // TEXTS
# Chi-square with 4 degrees of freedom at p = 1e-4; with 16 (pairs, 5 x 5) likewise.
CRITICAL_4 = 23.5
CRITICAL_16 = 46.0


def proposals_of(drafter: str, key: bytes, position: int, count: int) -> tuple[int, ...]:
    """What three kinds of drafter offer after the anchor at `position`."""
    if drafter == "argmax":
        return (0,) * count
    if drafter == "own law":
        rules = [Rule.coupled(key, position + j, 1.0) for j in range(1, count + 1)]
        return tuple(draft_sampling.draw(Q.log().expand(count, -1), rules, torch.arange(5)).tokens.tolist())
    return tuple((position + j) % 5 for j in range(count))


def coupled_texts(drafter: str, v: int) -> list[list[int]]:
    """TEXTS texts of TOKENS tokens, all in one engine, each with its own key."""
    engine = table_engine(P.log().expand(5, -1), num_pages=TEXTS * 32)
    texts: dict[str, list[int]] = {}
    keys = {str(i): i.to_bytes(16, "little") for i in range(TEXTS)}
    settings = params(TOKENS, temperature=1.0)
    for name, key in keys.items():
        texts[name] = [0]
        engine.apply(c.Open(address(name, 0), (0,), 1, key, settings))
    number = 0
    while any(len(text) <= TOKENS for text in texts.values()):
        for event in engine.step():
            if isinstance(event, c.Verdict):
                texts[event.address.key.request_id] += event.tokens
        if not engine.has_work():
            number += 1
            for name, text in texts.items():
                offered = proposals_of(drafter, keys[name], len(text) - 1, v - 1)
                engine.apply(c.Verify(address(name, number), len(text), offered))
    return [text[1:] for text in texts.values()]


def address(name: str, number: int) -> c.Address:
    return c.Address(c.RequestKey("law", name), 1, number)


def check_law(drafter: str, v: int) -> None:
    """Single tokens and pairs of neighbours follow p."""
    texts = torch.tensor(coupled_texts(drafter, v))  # [TEXTS, TOKENS]
    singles = torch.bincount(texts.reshape(-1), minlength=5).float()
    expected = P * DRAWS
    assert float(((singles - expected) ** 2 / expected).sum()) < CRITICAL_4
    codes = (texts[:, :-1] * 5 + texts[:, 1:]).reshape(-1)
    pairs = torch.bincount(codes, minlength=25).float()
    expected_pairs = torch.outer(P, P).reshape(-1) * len(codes)
    assert float(((pairs - expected_pairs) ** 2 / expected_pairs).sum()) < CRITICAL_16 + CRITICAL_4 * 2


@pytest.mark.parametrize("v", [1, 2, 5])
@pytest.mark.parametrize("drafter", ["argmax", "own law", "counting"])
def test_coupled_output_follows_p(drafter: str, v: int) -> None:
    check_law(drafter, v)


def test_argmax_drafter_is_unbiased() -> None:
    """H2: sample-and-compare with a greedy drafter is exact, if the same draw is emitted on a miss."""
    check_law("argmax", 4)


def test_texts_do_not_depend_on_the_drafter() -> None:
    expected = coupled_texts("argmax", 1)
    assert coupled_texts("own law", 5) == expected
    assert coupled_texts("counting", 3) == expected


def test_equal_laws_accept_every_proposal() -> None:
    """q = p and the same noise: the drafter's token is the target's, at every position."""
    torch.manual_seed(5)
    logits = torch.randn(500, 40)
    rules = [Rule.coupled(KEY, position, 0.8) for position in range(500)]
    rows = [RowParams(params(1, temperature=0.8), KEY, position) for position in range(500)]
    drafted = draft_sampling.draw(logits, rules, torch.arange(40)).tokens
    decided = target_sampling.choose(logits, rows).tokens
    assert drafted.tolist() == decided.tolist()


def test_acceptance_is_at_least_the_coupling_bound() -> None:
    """(1 - TV) / (1 + TV) of Daliri et al., measured over 4,000 positions."""
    count = 4000
    rules = [Rule.coupled(KEY, position, 1.0) for position in range(count)]
    rows = [RowParams(params(1, temperature=1.0), KEY, position) for position in range(count)]
    drafted = draft_sampling.draw(Q.log().expand(count, -1), rules, torch.arange(5)).tokens
    decided = target_sampling.choose(P.log().expand(count, -1), rows).tokens
    distance = float((P - Q).abs().sum()) / 2
    bound = (1 - distance) / (1 + distance)
    assert float((drafted == decided).float().mean()) > bound - 3 * (0.25 / count) ** 0.5
