"""Grammars at the target: masks along the proposals, rolled back to the committed prefix (pitfall C4)."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import lru_cache

import pytest
import torch

from protos.errors import InvalidRequest
from target_service import commands as c
from target_service.commands import FinishReason
from target_service.engine import Engine
from target_service.grammar import GrammarFactory, GrammarKind, GrammarSpec, Matcher
from target_service.grammars import Grammars, Maker
from tests.conformance import EOS, PARAMETERS, SCHEMA, TABLE, V, encode, grammar_factory, tokenizer
from tests.fakes import KEY, Driver, params, table_engine

SPECS = {
    "json": GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA)),
    "regex": GrammarSpec(GrammarKind.REGEX, "[ab]{2,6}(cd|ij)+"),
    "choice": GrammarSpec(GrammarKind.CHOICE, '["abc", "abj", "dad"]'),
    "lark": GrammarSpec(GrammarKind.LARK, PARAMETERS["grammar"]["response_format"]["grammar"]),
}


@lru_cache
def maker(name: str) -> Maker:
    return grammar_factory().compile(SPECS[name])


def at_once(work: Callable[[], Maker]) -> Future[Maker]:
    """Compiles in the caller's thread."""
    future: Future[Maker] = Future()
    try:
        future.set_result(work())
    except InvalidRequest as error:
        future.set_exception(error)
    return future


def engine(table: torch.Tensor = TABLE, **limits: object) -> Engine:
    limits = {"eos_ids": frozenset({EOS}), **limits}
    return table_engine(table, Grammars(grammar_factory(), at_once), **limits)


def open_with(driver: Driver, prompt: Sequence[int], settings: c.SamplingParams, name: str) -> c.Open:
    plain = driver.open_command(prompt, settings)
    return c.Open(plain.address, plain.token_ids, len(prompt), KEY, settings, True, grammar=SPECS[name])


def allowed_after(name: str, text: Sequence[int]) -> list[bool]:
    """What a matcher that has seen no proposal allows after a text."""
    matcher = maker(name)()
    assert matcher.advance(text)
    mask: list[bool] = matcher.rows([]).allowed[0].tolist()
    return mask


def random_text(rng: random.Random, matcher: Matcher, length: int) -> list[int]:
    """A text that the grammar allows; the matcher moves along."""
    text: list[int] = []
    while len(text) < length:
        choices = matcher.rows([]).allowed[0].nonzero()[:, 0].tolist()
        text.append(rng.choice(choices))
        assert matcher.advance(text[-1:])
        if text[-1] == EOS:
            break
    return text


def check_rows() -> None:
    """Every row is what a fresh matcher says after the same prefix, and nothing of a round remains."""
    for name in SPECS:
        for seed in range(8):
            rng = random.Random(seed)
            text = random_text(rng, maker(name)(), 12)
            matcher = maker(name)()
            done = 0
            while done < len(text):
                right = text[done : done + rng.randrange(0, 5)]
                wrong = [rng.randrange(V) for _ in range(rng.randrange(0, 3))]
                proposals = [*right, *wrong]
                rows = matcher.rows(proposals)
                for row in range(len(right) + 1):
                    expected = allowed_after(name, [*text[:done], *right[:row]])
                    assert rows.allowed[row].tolist() == expected, (name, seed, done, row)
                step = max(1, min(len(right), rng.randrange(1, 4)))
                assert matcher.advance(text[done : done + step])
                done += step


def test_every_row_is_that_of_a_fresh_matcher() -> None:
    check_rows()


@pytest.mark.parametrize("name", SPECS)
def test_after_completion_only_the_end_is_allowed(name: str) -> None:
    rng = random.Random(3)
    text = random_text(rng, maker(name)(), 60)
    while text[-1] != EOS:  # unbounded repetitions may go on
        text = random_text(rng, maker(name)(), 60)
    matcher = maker(name)()
    matcher.advance(text[:-1])
    assert matcher.rows([]).allowed[0][EOS]
    for _ in range(3):
        matcher.advance([EOS])
        rows = matcher.rows([EOS, 0])
        assert rows.allowed[0].nonzero()[:, 0].tolist() == [EOS]
        assert rows.is_over[0]


def run_to_the_end(driver: Driver, v: int, proposals: Sequence[int]) -> str:
    while driver.finish_reason is None:
        driver.verify(proposals[: v - 1])
    return tokenizer().decode(driver.generated)


def check_illegal_drafts() -> None:
    """C4: an enum, drafts that are illegal at slot 1 or later: the text is the plain one and parses."""
    expected = None
    for v, proposals in drafts():
        driver = Driver(engine())
        driver.round_trip(open_with(driver, [1], params(20), "choice"))
        text = run_to_the_end(driver, v, proposals)
        assert text in ("abc", "abj", "dad")
        assert driver.finish_reason is FinishReason.STOP
        expected = expected or text
        assert text == expected, (v, proposals)


def drafts() -> list[tuple[int, list[int]]]:
    legal, illegal = encode("dad"), encode("e0{")
    return [
        (1, []),
        (4, legal),
        (4, illegal),
        (4, [legal[0], *illegal]),
        (4, [EOS, EOS, EOS]),
        (4, [*encode("c"), *encode("c"), *encode("j")]),
        (5, [*encode("j"), *encode("c"), EOS, *encode("c")]),
        (8, [*encode("abc"), EOS, 3, 4, 5]),
    ]


def test_illegal_drafts_change_nothing() -> None:
    check_illegal_drafts()


def test_an_eviction_between_draft_and_verification() -> None:
    # 2 pages of 16: the older request needs the second one while the newer has a grammar half done.
    plain = Driver(engine())
    prompt = [3] * 13
    plain.round_trip(open_with(plain, prompt, params(12), "json"))
    expected = run_to_the_end(plain, 1, [])
    small = engine(num_pages=3)
    old, new = Driver(small, "old"), Driver(small, "new")
    old.open([4] * 15, params(20, ignore_eos=True))
    new.round_trip(open_with(new, prompt, params(12), "json"))
    old.round += 1
    old.take(small.apply(c.Run(old.address(), old.committed_length, 20, False)))
    while new.finish_reason is None:
        if small.requests.all()[1].active is None:
            new.take(small.apply(new.verify_command([EOS, 1, 2])))
        events = small.step()
        old.take(events)
        new.take(events)
    assert any(isinstance(event, c.Preempted) for event in new.events)
    assert tokenizer().decode(new.generated) == expected


def test_a_reopen_goes_on_where_the_grammar_was() -> None:
    plain = Driver(engine())
    plain.round_trip(open_with(plain, [1], params(20), "json"))
    run_to_the_end(plain, 1, [])
    again = Driver(engine(), epoch=2)
    opened = open_with(again, [1], params(20), "json")
    again.tokens = plain.tokens[:6]
    command = c.Open(opened.address, tuple(again.tokens), 1, KEY, params(20), True, grammar=SPECS["json"])
    again.round_trip(command)
    run_to_the_end(again, 4, [])
    assert again.tokens == plain.tokens


def test_generated_tokens_that_the_grammar_forbids_are_refused() -> None:
    target = engine()
    address = c.Address(c.RequestKey("test", "r"), 1, 0)
    opened = c.Open(address, (1, *encode("ab")), 1, KEY, params(20), grammar=SPECS["json"])
    target.apply(opened)
    (refused,) = target.step()
    assert isinstance(refused, c.Refused)
    assert refused.field == "token_ids"
    assert target.pool.num_available == target.pool.num_pages


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (GrammarKind.JSON_SCHEMA, '{"type": "strng"}'),
        (GrammarKind.JSON_SCHEMA, "{nope"),
        (GrammarKind.JSON_SCHEMA, "[1]"),
        (GrammarKind.REGEX, "("),
        (GrammarKind.LARK, "start: unknown"),
        (GrammarKind.LARK, "what"),
        (GrammarKind.CHOICE, "{"),
    ],
)
def test_what_is_no_grammar_is_refused_by_name(kind: GrammarKind, text: str) -> None:
    target = engine()
    driver = Driver(target)
    plain = driver.open_command([1], params(4))
    target.apply(c.Open(plain.address, (1,), 1, KEY, params(4), grammar=GrammarSpec(kind, text)))
    (refused,) = target.step()
    assert isinstance(refused, c.Refused)
    assert refused.code is c.RefusalCode.INVALID_ARGUMENT
    assert refused.field == f"grammar.{kind.value}"
    assert refused.message


def test_a_target_without_a_tokenizer_refuses_grammars() -> None:
    factory = GrammarFactory(None, V, frozenset({EOS}), False)
    with pytest.raises(InvalidRequest, match="no tokenizer"):
        factory.compile(SPECS["json"])


def test_a_slow_compilation_holds_up_nobody_else() -> None:
    started: list[Callable[[], Maker]] = []
    futures: list[Future[Maker]] = []

    def later(work: Callable[[], Maker]) -> Future[Maker]:
        started.append(work)
        futures.append(Future())
        return futures[-1]

    target = table_engine(TABLE, Grammars(grammar_factory(), later), eos_ids=frozenset({EOS}))
    slow, other, gone = Driver(target, "slow"), Driver(target, "other"), Driver(target, "gone")
    slow.take(target.apply(open_with(slow, [1], params(20), "json")))
    gone.take(target.apply(open_with(gone, [1], params(20), "regex")))
    other.open([1], params(9, ignore_eos=True))
    other.run(99)
    assert len(other.generated) == 9
    assert slow.events == []
    gone.close()
    assert target.step() == []
    futures[0].set_result(started[0]())
    slow.take(target.step())
    assert len(slow.generated) == 1


def test_a_known_grammar_is_not_compiled_again() -> None:
    count = 0

    def counted(work: Callable[[], Maker]) -> Future[Maker]:
        nonlocal count
        count += 1
        return at_once(work)

    grammars = Grammars(grammar_factory(), counted, max_kept=2)
    for name in ("json", "regex", "json", "regex", "json"):
        grammars.begin(SPECS[name])
    assert count == 2
    grammars.begin(SPECS["lark"])
    grammars.begin(SPECS["json"])
    assert count == 3
    grammars.begin(SPECS["regex"])
    assert count == 4
    assert len(grammars) == 2


def test_forced_tokens_are_a_hint_in_the_verdict() -> None:
    target = engine()
    driver = Driver(target)
    verdict = driver.round_trip(open_with(driver, [20], params(20), "json"))
    hints = [verdict.forced_tokens]
    while driver.finish_reason is None:
        verdict = driver.verify(verdict.forced_tokens)
        assert verdict.num_accepted >= min(len(hints[-1]), len(verdict.tokens) - 1)
        hints.append(verdict.forced_tokens)
    assert any(hints), "the key of the schema is forced"
    assert hints[-1] == ()


def test_without_forcing_a_text_may_have_other_tokens() -> None:
    forcing, free = maker("json")(), grammar_factory(no_forcing=True).compile(SPECS["json"])()
    for matcher in (forcing, free):
        assert matcher.advance(encode('{"'))
    assert forcing.forced() != ()
    assert free.forced() == ()
    assert int(free.rows([]).allowed.sum()) > int(forcing.rows([]).allowed.sum()) == 1


def test_min_tokens_gives_way_to_a_complete_text() -> None:
    driver = Driver(engine())
    driver.round_trip(open_with(driver, [1], params(20, min_tokens=15), "choice"))
    assert run_to_the_end(driver, 4, [5, 5, 5]) in ("abc", "abj", "dad")


def test_masks_are_cut_or_padded_to_the_models_vocabulary() -> None:
    factory = grammar_factory()
    factory._vocab_size = V + 7
    rows = factory.compile(SPECS["regex"])().rows([])
    assert rows.allowed.shape == (1, V + 7)
    assert not rows.allowed[0, V:].any()
