"""Rejection sampling: the released code's cases, and the law of what is emitted (pitfalls A3 to A9).

20,000 tokens by chi-square with fixed keys, over whole rounds of an engine with a table target and a
drafter that draws from a table of its own.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
import torch

from draft_service import sampling as draft_sampling
from draft_service.proposal import DraftItem, DraftMode, DraftResult
from target_service import commands as c
from target_service.rejection import (
    Draft,
    Place,
    TruncatedLaw,
    dense_laws,
    is_accepted,
    law_problem,
    residual_law,
    verify_drafts,
)
from target_service.sampling import filtered_log_law
from tests.fakes import GOLDEN, TableDrafter, params, table_engine
from tests.test_target_sampling import rows

CASES: list[dict[str, Any]] = json.loads((GOLDEN / "functions.json").read_text())["rejection_sample_verify"][
    "cases"
]
DRAWS = 20_000
TEXTS = 50
# Chi-square at p = 1e-4 by degrees of freedom.
CRITICAL = {1: 15.1, 2: 18.4, 3: 21.1, 8: 31.8, 15: 44.3}


def laws_of(case: dict[str, Any], name: str) -> torch.Tensor:
    values = torch.tensor(case[name]).reshape(-1, len(case["target"][0]))
    logits = values.log() if case["input_kind"].startswith("probabilities") else values
    return torch.softmax(logits / case["temperature"], dim=-1)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_golden_cases(case: dict[str, Any]) -> None:
    p, q = laws_of(case, "target"), laws_of(case, "draft")
    count = len(case["proposed_tokens"])
    accepted = 0
    if count:
        chosen = torch.tensor(case["proposed_tokens"])[:, None]
        p_of, q_of = p[:count].gather(1, chosen)[:, 0], q.gather(1, chosen)[:, 0]
        torch.testing.assert_close((p_of / q_of).clamp(max=1.0), torch.tensor(case["accept_probs"]))
        flags = is_accepted(p_of, q_of, torch.tensor(case["u"])).tolist()
        accepted = len(list(itertools.takewhile(bool, flags)))
    assert accepted == case["accepted_count"]
    law = residual_law(p[:count], q)[accepted] if accepted < count else p[count]
    torch.testing.assert_close(law, torch.tensor(case["distribution_of_next_token"]), rtol=0, atol=1e-6)
    assert int(law.argmax()) == case["next_token_if_argmax"]


def test_acceptance_is_strict() -> None:
    """A9: u = 0 never accepts a token of probability 0, and u = p/q rejects."""
    zero, half = torch.tensor([0.0]), torch.tensor([0.5])
    assert not bool(is_accepted(zero, half, torch.tensor([0.0])))
    assert not bool(is_accepted(torch.tensor([0.25]), half, half))
    assert bool(is_accepted(torch.tensor([0.25]), half, torch.tensor([0.4999])))


def test_equal_laws_leave_p_and_no_nan() -> None:
    """A9: where p = q and the reject branch is forced, p is left, and no NaN."""
    p = torch.tensor([[0.0, 1.0, 0.0], [0.2, 0.3, 0.5]])
    assert torch.equal(residual_law(p, p), p)


def test_laws_of_several_rows() -> None:
    laws = [TruncatedLaw((2,), (1.0,)), TruncatedLaw((0, 1), (0.25, 0.75))]
    assert dense_laws(laws, torch.zeros(2, 3)).tolist() == [[0, 0, 1], [0.25, 0.75, 0]]


@pytest.mark.parametrize(
    ("token", "law"),
    [
        (0, TruncatedLaw((1, 2), (0.5, 0.5))),
        (1, TruncatedLaw((1, 1), (0.5, 0.5))),
        (1, TruncatedLaw((1, 2), (0.5,))),
        (1, TruncatedLaw((1, 2), (0.5, 0.6))),
        (1, TruncatedLaw((1, 2), (0.0, 1.0))),
        (1, TruncatedLaw((1,), (float("nan"),))),
        (1, TruncatedLaw((1, 2), (1.5, -0.5))),
        (0, TruncatedLaw((), ())),
    ],
)
def test_a_law_that_is_none_is_refused(token: int, law: TruncatedLaw) -> None:
    assert law_problem(token, law) is not None


# ---- whole rounds --------------------------------------------------------------------------------

FAR_P = torch.tensor([0.30, 0.30, 0.39, 0.01])
FAR_Q = torch.tensor([0.29, 0.01, 0.10, 0.60])
NEAR_P, NEAR_Q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.5, 0.3])


def rejection_texts(
    p: torch.Tensor, q: torch.Tensor, v: int, max_entries: int = 64, **filters: object
) -> torch.Tensor:
    """[TEXTS, DRAWS / TEXTS] tokens of texts with a key each, all in one engine.

    Args:
        p, q: [V, V] laws given the last token; the same for every token if [V].
        v: rows of each verification.
    """
    size = p.shape[-1]
    target, draft = p.log().expand(size, size), q.log().expand(size, size)
    count = DRAWS // TEXTS
    engine = table_engine(target, num_pages=TEXTS * 32)
    drafter = TableDrafter(draft, v)
    settings = params(count, temperature=1.0, uses_rejection=True, **filters)
    keys = {str(i): i.to_bytes(16, "little") for i in range(TEXTS)}
    texts = {name: [0] for name in keys}
    for name, key in keys.items():
        engine.apply(c.Open(_address(name, 0), (0,), 1, key, settings))
    number = 0
    while any(len(text) <= count for text in texts.values()):
        for event in engine.step():
            assert not isinstance(event, c.Refused), event
            if isinstance(event, c.Verdict):
                texts[event.address.key.request_id] += event.tokens
        if engine.has_work():
            continue
        number += 1
        items = [
            DraftItem(
                name,
                (text[-1],),
                None,
                len(text) - 1,
                v - 1,
                DraftMode.REJECTION,
                keys[name],
                1.0,
                max_entries,
            )
            for name, text in texts.items()
        ]
        for item, result in zip(
            items, drafter.propose(items) if v > 1 else [DraftResult()] * TEXTS, strict=True
        ):
            laws = tuple(TruncatedLaw(law.token_ids, law.probabilities) for law in result.laws)
            address = _address(item.request_id, number)
            engine.apply(c.Verify(address, item.position + 1, result.tokens, laws=laws))
    return torch.tensor([text[1:] for text in texts.values()])


def _address(name: str, number: int) -> c.Address:
    return c.Address(c.RequestKey("law", name), 1, number)


def chi_square(counts: torch.Tensor, law: torch.Tensor) -> float:
    """Infinite when a token of probability 0 was drawn."""
    expected, kept = law * counts.sum(), law > 0
    if int(counts[~kept].sum()):
        return float("inf")
    return float(((counts - expected)[kept] ** 2 / expected[kept]).sum())


def check_law(p: torch.Tensor, q: torch.Tensor, v: int, **filters: object) -> None:
    """Single tokens and pairs of neighbours follow the filtered p."""
    law = filtered_log_law(p.log()[None], rows(1, **filters)).exp()[0]
    texts = rejection_texts(p, q, v, **filters)
    size, kept = len(p), int((law > 0).sum())
    singles = torch.bincount(texts.reshape(-1), minlength=size).float()
    assert chi_square(singles, law) < CRITICAL[kept - 1], singles / singles.sum()
    codes = (texts[:, :-1] * size + texts[:, 1:]).reshape(-1)
    pairs = torch.bincount(codes, minlength=size * size).float()
    assert chi_square(pairs, torch.outer(law, law).reshape(-1)) < CRITICAL[kept * kept - 1]


FILTERS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.5},
    {"top_k": 3},
    {"top_p": 0.7},
    {"min_p": 0.5},
]


@pytest.mark.parametrize("v", [2, 4])
@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_far_laws_with_each_filter(filters: dict[str, Any], v: int) -> None:
    """A6, A7: the filters shape accepted, redrawn and bonus tokens alike."""
    settings = dict(filters)
    temperature = settings.pop("temperature", 1.0)
    if temperature != 1.0:
        # The engine's requests are at temperature 1; a flatter table is the same law.
        check_law(torch.softmax(FAR_P.log() / temperature, dim=-1), FAR_Q, v)
        return
    check_law(FAR_P, FAR_Q, v, **settings)


def test_without_proposals_every_token_is_a_bonus() -> None:
    check_law(FAR_P, FAR_Q, 1)


def test_near_laws() -> None:
    """A4: p = [.5, .3, .2], q = [.2, .5, .3]."""
    check_law(NEAR_P, NEAR_Q, 3)


def test_far_laws() -> None:
    """For wrong builds: p and q that differ much, at v = 3."""
    check_law(FAR_P, FAR_Q, 3)


def test_far_laws_with_top_k() -> None:
    """For wrong builds: A7."""
    check_law(FAR_P, FAR_Q, 3, top_k=2)


@pytest.mark.parametrize("max_entries", [1, 2])
def test_a_truncated_law_costs_acceptance_only(max_entries: int) -> None:
    law = FAR_P
    texts = rejection_texts(law, FAR_Q, 3, max_entries=max_entries)
    singles = torch.bincount(texts.reshape(-1), minlength=4).float()
    assert chi_square(singles, law) < CRITICAL[3]


def test_one_hot_laws_accept_with_probability_p() -> None:
    """A3: a certain proposal has a one-hot q: accept .3, residual [5/7, 0, 2/7]."""
    count = 20_000
    drafts = [Draft(1, TruncatedLaw((1,), (1.0,)))] * count
    places = [Place(bytes(16), position) for position in range(count)]
    tokens = verify_drafts(NEAR_P.expand(count, -1), drafts, places)
    counts = torch.bincount(tokens, minlength=3).float()
    assert chi_square(counts, NEAR_P) < CRITICAL[2]
    rest = residual_law(NEAR_P[None], torch.tensor([[0.0, 1.0, 0.0]]))
    torch.testing.assert_close(rest, torch.tensor([[5 / 7, 0.0, 2 / 7]]))


def test_the_declared_law_is_the_drawn_one() -> None:
    """A3: an argmax drafter that declares a one-hot q gives p; with a declared softmax it does not."""
    count = 20_000
    q = NEAR_Q.log().expand(count, -1)
    drawn = draft_sampling.draw(
        q, [draft_sampling.Rule.rejection(bytes(16), i, 1.0, 3) for i in range(count)], torch.arange(3)
    )
    drafts = [
        Draft(int(token), TruncatedLaw(law.token_ids, law.probabilities))
        for token, law in zip(drawn.tokens, drawn.laws, strict=True)
        if law is not None
    ]
    tokens = verify_drafts(NEAR_P.expand(count, -1), drafts, [Place(bytes(16), i) for i in range(count)])
    assert chi_square(torch.bincount(tokens, minlength=3).float(), NEAR_P) < CRITICAL[2]


def test_drafts_are_conditional_on_the_proposal_before() -> None:
    """A8: q of a slot is given the proposal before it: after 0 tokens follow [.9, .1], after 1 [.2, .8]."""
    p = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    q = torch.tensor([[0.3, 0.7], [0.6, 0.4]])
    texts = rejection_texts(p, q, 3)
    codes = (texts[:, :-1] * 2 + texts[:, 1:]).reshape(-1)
    pairs = torch.bincount(codes, minlength=4).float()
    for first in (0, 1):
        assert chi_square(pairs[2 * first : 2 * first + 2], p[first]) < CRITICAL[1]


def test_laws_come_in_rejection_mode_and_only_there() -> None:
    law = c.TruncatedLaw((0,), (1.0,))
    for uses_rejection, laws in ((True, ()), (False, (law,)), (True, (law, law))):
        engine = table_engine(torch.zeros(3, 3))
        key = _address("r", 0)
        engine.apply(
            c.Open(key, (0,), 1, bytes(16), params(9, temperature=1.0, uses_rejection=uses_rejection))
        )
        engine.step()
        (refused,) = engine.apply(c.Verify(_address("r", 1), 2, (0,), laws=laws))
        assert isinstance(refused, c.Refused)
        assert refused.field == "law"
