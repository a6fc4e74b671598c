"""Rejection sampling with every parameter follows its law: alone, in 20 pairs, at several v.

Texts are random, so each token is held against the exact law of its own prefix, computed by a slow
twin: the sum of (token - law) over all decisions has a known covariance, and its quadratic form is
chi-square. Token counts alone would not see a law that is right on average only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from coordinator.tuning import BlindProposals
from deploy.in_process import InProcess, in_process
from protos import coordinator_pb2
from protos.coordinator_pb2 import SPECULATION_MODE_REJECTION
from target_service.grammar import Matcher
from target_service.wire_commands import grammar_from
from tests.conformance import (
    BLOCK,
    DRAFT_TABLE,
    EOS,
    PARAMETERS,
    PROMPTS,
    TABLE,
    Outcome,
    V,
    generate_all,
    grammar_factory,
    request,
    sent_params,
    target,
    tokenizer,
)
from tests.fakes import TableDrafter, table_built
from tests.slow_law import Text, law

NUM_TEXTS = 64
LENGTH = 24
# Decisions expected of a token before it is a category of its own.
MIN_EXPECTED = 20.0
PAIRS = [
    ("json_schema", "temperature"),
    ("json_schema", "frequency_penalty"),
    ("regex", "logit_bias"),
    ("grammar", "top_p"),
    ("choice", "min_p"),
    ("temperature", "top_k"),
    ("temperature", "frequency_penalty"),
    ("top_k", "top_p"),
    ("top_k", "logit_bias"),
    ("top_k", "presence_penalty"),
    ("top_p", "min_p"),
    ("top_p", "repetition_penalty"),
    ("top_p", "bad_words"),
    ("min_p", "allowed_token_ids"),
    ("min_p", "min_tokens"),
    ("frequency_penalty", "repetition_penalty"),
    ("frequency_penalty", "min_tokens"),
    ("presence_penalty", "bad_words"),
    ("repetition_penalty", "logit_bias"),
    ("logit_bias", "allowed_token_ids"),
    ("allowed_token_ids", "ignore_eos"),
    ("bad_words", "stop"),
    ("min_tokens", "stop_token_ids"),
    ("ignore_eos", "logprobs"),
    ("stop", "max_tokens"),
]


def critical(degrees: int) -> float:
    """Chi-square at p = 1e-4, by Wilson and Hilferty (within 1 % from 2 degrees on)."""
    return float(degrees * (1 - 2 / (9 * degrees) + 3.719 * (2 / (9 * degrees)) ** 0.5) ** 3)


class LawTest:
    """Collects decisions and the law of each."""

    def __init__(self, size: int) -> None:
        self.count = 0
        self.difference = torch.zeros(size, dtype=torch.float64)
        self.expected = torch.zeros(size, dtype=torch.float64)
        self.covariance = torch.zeros(size, size, dtype=torch.float64)

    def add(self, token: int, probabilities: Iterable[float]) -> None:
        p = torch.tensor(list(probabilities), dtype=torch.float64)
        assert p[token] > 0, f"token {token} of probability 0 was drawn"
        self.count += 1
        self.difference -= p
        self.difference[token] += 1
        self.expected += p
        self.covariance += torch.diag(p) - torch.outer(p, p)

    def check(self) -> None:
        """Rare tokens are one category."""
        common = (self.expected >= MIN_EXPECTED).nonzero()[:, 0]
        d = self.difference[common]
        covariance = self.covariance[common][:, common]
        # Without a rest the categories sum to 0: one direction has no variance.
        values, vectors = torch.linalg.eigh(covariance)
        kept = values > 1e-6 * values.max()
        statistic = float((((vectors.T @ d) ** 2)[kept] / values[kept]).sum())
        degrees = int(kept.sum())
        assert degrees >= 1, "nothing varies"
        assert statistic < critical(degrees), f"{statistic:.1f} with {degrees} degrees of freedom"


def rejection(
    name: str, fields: Mapping[str, Any], v: int, prompt: int, seed: int
) -> coordinator_pb2.GenerateRequest:
    message = request(name, {"max_tokens": LENGTH, **fields, "seed": seed}, 1.0, v, prompt)
    message.speculation.mode = SPECULATION_MODE_REJECTION
    return message


def judge(test: LawTest, message: coordinator_pb2.GenerateRequest, params: Any, found: Outcome) -> None:
    """Adds every decision of an answer, with the law of its prefix."""
    stop_ids = frozenset(message.stop_token_ids) | (frozenset() if message.ignore_eos else {EOS})
    make = fresh_matcher(message)
    for choice in found.answer.choices:
        text = [*message.token_ids, *choice.token_ids]
        for place in range(len(message.token_ids), len(text)):
            generated = text[len(message.token_ids) : place]
            before = Text(message.token_ids, generated, stop_ids)
            if make is not None:
                matcher = make()
                assert matcher.advance(generated)
                rows = matcher.rows([])
                allowed = frozenset(rows.allowed[0].nonzero()[:, 0].tolist())
                before = replace(before, allowed=allowed, is_over=rows.is_over[0])
            test.add(text[place], law(TABLE[text[place - 1]].tolist(), params, before))


def fresh_matcher(message: coordinator_pb2.GenerateRequest) -> Callable[[], Matcher] | None:
    """Matchers of a request's grammar that have seen no proposals."""
    spec = grammar_from(message.response_format)
    return None if spec is None else grammar_factory().compile(spec)


async def check_law(fields: Mapping[str, Any], v: int) -> None:
    """NUM_TEXTS texts in rejection mode follow the law of every prefix."""
    async with in_process(target(), TableDrafter(DRAFT_TABLE, BLOCK - 1), tokenizer()) as system:
        messages = [rejection(f"r{i}", fields, v, i % len(PROMPTS), 1000 + i) for i in range(NUM_TEXTS)]
        found = await generate_all(system, messages)
        test = LawTest(V)
        for message, outcome in zip(messages, found, strict=True):
            assert outcome.error == ""
            judge(test, message, sent_params(message), outcome)
        if v > 1:
            assert sum(one.answer.finished.ledger.num_draft_rounds for one in found) >= NUM_TEXTS
            assert sum(one.answer.usage.accepted_tokens for one in found) > 0
    test.check()


CASES = {"without": {}, **PARAMETERS}


@pytest.mark.parametrize("name", CASES)
async def test_each_parameter(name: str) -> None:
    await check_law(CASES[name], BLOCK)


@pytest.mark.parametrize("v", [1, 2, 4])
async def test_every_block_size(v: int) -> None:
    await check_law({"frequency_penalty": 0.8}, v)


@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
async def test_pairs(pair: tuple[str, str]) -> None:
    one, other = pair
    await check_law({**PARAMETERS[one], **PARAMETERS[other]}, BLOCK)


async def test_lookup_proposals_are_certain() -> None:
    """A lookup proposal has a one-hot q; its source does not depend on what it proposes."""
    fields = {"temperature": 0.5, "ignore_eos": True, "max_tokens": 60}
    async with in_process(target(), None, tokenizer()) as system:
        messages = [rejection(f"r{i}", fields, BLOCK, 1, i) for i in range(NUM_TEXTS)]
        for message in messages:
            message.speculation.source = coordinator_pb2.PROPOSAL_SOURCE_LOOKUP
        found = await generate_all(system, messages)
        test = LawTest(V)
        for message, outcome in zip(messages, found, strict=True):
            judge(test, message, sent_params(message), outcome)
        assert sum(one.answer.finished.ledger.num_lookup_rounds for one in found) > NUM_TEXTS
    test.check()


FAR_P = torch.tensor([0.30, 0.30, 0.39, 0.01])
FAR_Q = torch.tensor([0.29, 0.01, 0.10, 0.60])


async def far_texts(system: InProcess) -> torch.Tensor:
    """Token counts [4] of 40 texts of 250 tokens at v = 4."""
    messages = [rejection(f"f{i}", {"max_tokens": 250, "token_ids": [0]}, 4, 0, i) for i in range(40)]
    found = await generate_all(system, messages)
    tokens = [token for one in found for token in one.answer.token_ids]
    assert len(tokens) == 10_000
    return torch.bincount(torch.tensor(tokens), minlength=4).double()


async def test_v_does_not_depend_on_what_was_proposed() -> None:
    """Far laws through the coordinator: a v chosen by confidence is biased here."""
    built = table_built(FAR_P.log().expand(4, 4), num_pages=1024)
    async with in_process(built, TableDrafter(FAR_Q.log().expand(4, 4), 3)) as system:
        counts = await far_texts(system)
    expected = FAR_P.double() * counts.sum()
    assert float(((counts - expected) ** 2 / expected).sum()) < critical(3), counts / counts.sum()


def test_blind_proposals_cannot_be_looked_at() -> None:
    proposals = BlindProposals((1, 2, 3), ())
    assert not hasattr(proposals, "probabilities")
    assert proposals.first(2).tokens == (1, 2)
