"""Logit processors along the proposed prefix, against a slow twin (pitfalls B7, C1, C3)."""

from __future__ import annotations

import random

import pytest
import torch

from target_service import commands as c
from target_service.commands import FinishReason, SamplingParams
from target_service.processors import Block, TextState, Vocabulary, process
from tests.fakes import Driver, params, table_engine

V = 11
CPU = Vocabulary(V, torch.device("cpu"))


def slow_row(
    logits: list[float], settings: SamplingParams, prompt: list[int], text: list[int], stops: set[int]
) -> list[float]:
    """One row, one token at a time: vLLM's documented order and rules."""
    out = []
    for token, logit in enumerate(logits):
        value = logit
        for word in settings.bad_words:
            start = list(word[:-1])
            if word[-1] == token and text[len(text) - len(start) :] == start and len(start) <= len(text):
                value = -float("inf")
        if settings.allowed_token_ids and token not in settings.allowed_token_ids:
            value = -float("inf")
        if len(text) < settings.min_tokens and token in stops:
            value = -float("inf")
        value += dict(settings.logit_bias).get(token, 0.0)
        if token in prompt or token in text:
            factor = settings.repetition_penalty
            value = value / factor if value > 0 else value * factor
        value -= settings.frequency_penalty * text.count(token)
        value -= settings.presence_penalty * (token in text)
        out.append(value)
    return out


def random_params(rng: random.Random) -> SamplingParams:
    """Each processor in half of the cases."""

    def maybe(value: object, neutral: object) -> object:
        return value if rng.random() < 0.5 else neutral

    return params(  # type: ignore[arg-type]
        50,
        presence_penalty=maybe(rng.uniform(-2, 2), 0.0),
        frequency_penalty=maybe(rng.uniform(-2, 2), 0.0),
        repetition_penalty=maybe(rng.uniform(0.5, 2), 1.0),
        logit_bias=maybe(tuple((t, rng.uniform(-9, 9)) for t in rng.sample(range(V), 3)), ()),
        allowed_token_ids=maybe(frozenset(rng.sample(range(V), 7)), frozenset()),
        bad_words=maybe(tuple(tuple(rng.choices(range(3), k=k)) for k in (1, 2, 3)), ()),
        min_tokens=maybe(rng.randrange(1, 9), 0),
    )


@pytest.mark.parametrize("seed", range(40))
def test_every_row_equals_its_slow_twin(seed: int) -> None:
    rng = random.Random(seed)
    logits = torch.randn(40, V, generator=torch.Generator().manual_seed(seed))
    before = logits.clone()
    blocks, expected, first = [], before.tolist(), 0
    for _ in range(4):
        settings = random_params(rng)
        prompt = rng.choices(range(V), k=rng.randrange(1, 6))
        generated = rng.choices(range(4), k=rng.randrange(0, 8))
        proposals = tuple(rng.choices(range(4), k=rng.randrange(0, 5)))
        state = TextState(settings, len(prompt), CPU)
        text = [*prompt, *generated]
        for end in sorted({rng.randrange(len(text) + 1), len(text)}):  # in one or two bites
            state.catch_up(text[:end])
        blocks.append(Block(first, state, generated, proposals, frozenset({9, 10})))
        for i in range(1 + len(proposals)):
            row = before[first + i].tolist()
            seen = [*generated, *proposals[:i]]
            expected[first + i] = slow_row(row, settings, prompt, seen, {9, 10})
        first += 1 + len(proposals) + rng.randrange(2)  # untouched rows of other requests between
    found = process(logits, blocks)
    assert torch.equal(logits, before), "the raw logits are still needed"
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-5, atol=1e-5)


def test_without_processors_nothing_is_copied() -> None:
    logits = torch.randn(3, V)
    assert process(logits, []) is logits
    driver = Driver(table_engine(logits[:1].expand(V, V)))
    driver.open([1], params(4))
    assert driver.engine.requests.all()[0].text_state is None


def test_bf16_logits_are_processed_in_float32() -> None:
    state = TextState(params(1, logit_bias=((0, 1e-3),)), 1, CPU)
    found = process(torch.ones(1, V, dtype=torch.bfloat16), [Block(0, state, [], (), frozenset())])
    assert found.dtype == torch.float32
    assert float(found[0, 0]) == pytest.approx(1.001)


A, B = 0, 1
C1_TABLE = torch.tensor([[3.0, 1.5, -9.0]]).expand(3, 3)


def test_frequency_penalty_counts_inside_the_block() -> None:
    """C1: A=3, B=1.5, frequency penalty 1, every token proposed is A: AABABA."""
    for v in (1, 2, 4, 5):
        driver = Driver(table_engine(C1_TABLE))
        driver.open([2], params(6, frequency_penalty=1.0))
        while driver.finish_reason is None:
            driver.verify([A] * (v - 1))
        assert driver.generated == [A, A, B, A, B, A], v


def test_a_banned_token_and_a_banned_pair_never_come() -> None:
    # C3: the drafter insists on both.
    table = torch.tensor([[5.0, 4.0, 3.0]]).expand(3, 3)
    driver = Driver(table_engine(table))
    driver.open([2], params(6, logit_bias=((0, -100.0),)))
    driver.verify([0, 0, 0])
    driver.run(9)
    assert driver.generated == [1] * 6
    pair = Driver(table_engine(table))
    pair.open([2], params(7, bad_words=((0, 1), (0, 0))))
    while pair.finish_reason is None:
        pair.verify([0, 1, 0])
    assert (0, 1) not in zip(pair.generated, pair.generated[1:], strict=False)
    assert pair.generated == [0, 2, 0, 2, 0, 2, 0]


def test_min_tokens_counts_tokens() -> None:
    """B7: min_tokens 8, the target wants EOS at once: impossible at 0..7, possible at 8."""
    eos = 2
    table = torch.tensor([[0.0, 1.0, 5.0]]).expand(3, 3)
    for proposals in ((), (eos,) * 4, (1, 1, eos, eos), (1, 1, 1, 1)):
        driver = Driver(table_engine(table, eos_ids=frozenset({eos})))
        driver.open([0], params(20, min_tokens=8))
        while driver.finish_reason is None:
            driver.verify(proposals)
        assert driver.generated == [1] * 8 + [eos], proposals
        assert driver.finish_reason is FinishReason.STOP


def test_ignore_eos_and_a_rejected_eos() -> None:
    # B7: ignore_eos gives exactly max_tokens; a drafted EOS that is rejected changes nothing.
    eos = 2
    wants_eos = torch.tensor([[0.0, 1.0, 5.0]]).expand(3, 3)
    driver = Driver(table_engine(wants_eos, eos_ids=frozenset({eos})))
    driver.open([0], params(20, ignore_eos=True, min_tokens=3))
    driver.run(99)
    assert driver.generated == [eos] * 20
    other = Driver(table_engine(torch.tensor([[0.0, 5.0, 1.0]]).expand(3, 3), eos_ids=frozenset({eos})))
    other.open([0], params(6))
    verdict = other.verify([1, eos, 1])
    assert (verdict.num_accepted, verdict.finish_reason) == (1, None)
    other.run(99)
    assert other.generated == [1] * 6


def test_counts_begin_at_the_prompt_also_after_a_reopen_and_an_eviction() -> None:
    torch.manual_seed(3)
    table = torch.randn(V, V)
    settings = params(
        30,
        frequency_penalty=0.7,
        presence_penalty=0.3,
        repetition_penalty=1.3,
        min_tokens=25,
        bad_words=((1, 2),),
    )
    eos = frozenset({int(table[0].argmax())})
    plain = Driver(table_engine(table, eos_ids=eos))
    plain.open([3, 4], settings)
    plain.run(99)
    # A re-open: prompt and generated tokens arrive together, num_prompt_tokens tells them apart.
    again = Driver(table_engine(table, eos_ids=eos), epoch=2)
    again.round, again.tokens, again.num_prompt = 0, plain.tokens[:15], 2
    command = c.Open(again.address(), tuple(again.tokens), 2, bytes(16), settings, want_features=True)
    again.round_trip(command)
    again.run(99)
    assert again.tokens == plain.tokens
    # An eviction: 2 pages of 16 for two requests of up to 32 tokens.
    engine = table_engine(table, eos_ids=eos, num_pages=2)
    old, new = Driver(engine, "old"), Driver(engine, "new")
    for driver in (old, new):
        driver.open([3, 4], settings)
    for driver in (old, new):
        driver.round += 1
        driver.take(engine.apply(c.Run(driver.address(), driver.committed_length, 99, True)))
    while old.finish_reason is None or new.finish_reason is None:
        events = engine.step()
        for driver in (old, new):
            driver.take(events)
    assert any(isinstance(event, c.Preempted) for event in new.events)
    assert old.tokens == plain.tokens
    assert new.tokens == plain.tokens


def test_masks_that_exclude_one_another_end_the_request_by_name() -> None:
    eos = 2
    engine = table_engine(torch.eye(3), eos_ids=frozenset({eos}))
    driver = Driver(engine)
    driver.take(
        engine.apply(driver.open_command([0], params(9, allowed_token_ids=frozenset({eos}), min_tokens=2)))
    )
    (refused,) = engine.step()
    assert isinstance(refused, c.Refused)
    assert (refused.code, refused.field) == (c.RefusalCode.INVALID_ARGUMENT, "params")
    assert "position 1" in refused.message
    assert engine.pool.num_available == engine.pool.num_pages
    assert engine.apply(driver.open_command([0], params(1)))[0] == refused, "a resend gets the stored answer"


@pytest.mark.parametrize("v", [1, 2, 3, 5])
def test_a_dead_end_inside_a_block_is_found_where_plain_decoding_finds_it(v: int) -> None:
    # 0 -> 1 -> 2 -> nothing: after 2 every token is a bad word's end.
    table = torch.eye(3).roll(1, dims=1) * 5
    engine = table_engine(table)
    driver = Driver(engine)
    driver.open([0], params(9, bad_words=((2, 0), (2, 1), (2, 2))))
    events: list[c.Event] = []
    while not any(isinstance(event, c.Refused) for event in events):
        proposals = [(driver.tokens[-1] + i) % 3 for i in range(1, v)]
        events = [*engine.apply(driver.verify_command(proposals)), *engine.step()]
        driver.take([event for event in events if not isinstance(event, c.Refused)])
    assert driver.generated == [1, 2]
    assert engine.pool.num_available == engine.pool.num_pages


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"logit_bias": ((V, 1.0),)}, "params.logit_bias"),
        ({"allowed_token_ids": frozenset({V})}, "params.allowed_token_ids"),
        ({"bad_words": ((0, V),)}, "params.bad_words"),
        ({"min_tokens": 5}, "params.min_tokens"),
    ],
)
def test_what_cannot_be_is_refused_by_name(changes: dict[str, object], field: str) -> None:
    engine = table_engine(torch.zeros(V, V))
    (refused,) = engine.apply(Driver(engine).open_command([0], params(4, **changes)))
    assert isinstance(refused, c.Refused)
    assert refused.field == field
