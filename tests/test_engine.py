"""The engine over many requests: stops, limits, pages under pressure, cancels, seeds."""

from __future__ import annotations

import random

import pytest
import torch

from target_service import commands as c
from target_service.commands import FinishReason, RefusalCode
from target_service.engine import Engine
from tests.fakes import KEY, Driver, params, plain_greedy, table_engine, tiny_engine, tiny_target

COUNTING = torch.eye(50).roll(1, dims=1) * 5.0  # next token = token + 1 mod 50
PROMPT = (7, 8)


@pytest.mark.parametrize("slot", range(9))
def test_planted_eos_at_every_slot(slot: int) -> None:
    # B1: EOS at index 9, K = 8, oracle drafter; the block starts so that EOS falls on each slot.
    eos = 8 + 10
    engine = table_engine(COUNTING, eos_ids=frozenset({eos}))
    driver = Driver(engine)
    driver.open(PROMPT, params(40))
    before = 9 - slot  # tokens committed before the block
    while len(driver.generated) < before:
        driver.verify([])
    verdict = driver.verify(range(driver.tokens[-1] + 1, driver.tokens[-1] + 9))
    assert len(driver.generated) == 10
    assert driver.generated[-1] == eos
    assert verdict.finish_reason is FinishReason.STOP
    assert verdict.num_accepted <= len(verdict.tokens)
    assert engine.pool.num_available == engine.pool.num_pages, "KV holds something past EOS"
    assert engine.requests.all()[0].kv_length == 0
    assert not [event for event in driver.events[-1:] if isinstance(event, c.Features)]


def test_eos_in_a_run_and_ignore_eos() -> None:
    engine = table_engine(COUNTING, eos_ids=frozenset({12}))
    stopped, ignoring = Driver(engine, "a"), Driver(engine, "b")
    stopped.open(PROMPT, params(20))
    stopped.run(100)
    assert stopped.generated == [9, 10, 11, 12]
    assert stopped.finish_reason is FinishReason.STOP
    ignoring.open(PROMPT, params(20, ignore_eos=True))
    ignoring.run(100)
    assert len(ignoring.generated) == 20
    assert ignoring.finish_reason is FinishReason.LENGTH


def test_eos_as_first_token_ends_open() -> None:
    engine = table_engine(COUNTING, eos_ids=frozenset({9}))
    driver = Driver(engine)
    verdict = driver.open(PROMPT, params(20))
    assert verdict.finish_reason is FinishReason.STOP
    assert engine.pool.num_available == engine.pool.num_pages


def test_stop_token_ids() -> None:
    driver = Driver(table_engine(COUNTING))
    driver.open(PROMPT, params(20, stop_token_ids=frozenset({11})))
    driver.verify([10, 11, 12])
    assert driver.generated == [9, 10, 11]
    assert driver.finish_reason is FinishReason.STOP


@pytest.mark.parametrize("max_tokens", [1, 2, 5, 8, 9, 10])
def test_limit_with_an_oracle(max_tokens: int) -> None:
    # B6: exactly max_tokens, whatever the block; proposals past the limit are not verified.
    engine = table_engine(COUNTING)
    driver = Driver(engine)
    driver.open(PROMPT, params(max_tokens))
    while driver.finish_reason is None:
        verdict = driver.verify([(driver.tokens[-1] + i) % 50 for i in range(1, 9)])
        assert verdict.num_verified <= max_tokens - 1
    assert len(driver.generated) == max_tokens
    assert driver.finish_reason is FinishReason.LENGTH
    assert engine.pool.num_available == engine.pool.num_pages


def drive_all(engine: Engine, drivers: list[Driver], prompts: list[list[int]], max_tokens: int) -> None:
    """Runs all requests at once in Verify rounds with poor proposals until they end."""
    for driver, prompt in zip(drivers, prompts, strict=True):
        driver.take(engine.apply(driver.open_command(prompt, params(max_tokens))))
    for _ in range(20_000):
        for driver in drivers:
            sequence = next((s for s in engine.requests.all() if s.key == driver.key), None)
            if sequence is not None and sequence.active is None and driver.finish_reason is None:
                proposals = [(driver.tokens[-1] * 3 + i) % 61 for i in range(3)]
                driver.take(engine.apply(driver.verify_command(proposals)))
        if all(driver.finish_reason is not None for driver in drivers):
            return
        events = engine.step()
        engine.requests.check_integrity()
        for driver in drivers:
            driver.take(events)
    raise AssertionError("no end")


def test_a_small_pool_finishes_everyone_with_the_ids_of_solo_runs() -> None:
    # D16: 8 pages of 16, three requests of 60 + 60 tokens; a fourth can never fit.
    model = tiny_target("llama")
    prompts = [[(5 * i + seed) % 61 for i in range(60)] for seed in range(3)]
    references = [plain_greedy(model, prompt, 60) for prompt in prompts]
    engine = tiny_engine(model, num_pages=8)
    drivers = [Driver(engine, str(i)) for i in range(3)]
    drive_all(engine, drivers, prompts, 60)
    assert [driver.generated for driver in drivers] == references
    assert engine.pool.num_available == 8
    preempted = [event for driver in drivers for event in driver.events if isinstance(event, c.Preempted)]
    assert preempted, "the pool was meant to be too small for three"
    assert not [e for e in drivers[0].events if isinstance(e, c.Preempted)], "the oldest was evicted"
    address = c.Address(c.RequestKey("test", "big"), 1, 0)
    (refusal,) = engine.apply(c.Open(address, tuple(range(60)), 60, KEY, params(90)))
    assert isinstance(refusal, c.Refused)
    assert refusal.code is RefusalCode.INVALID_ARGUMENT
    assert "10 pages" in refusal.message
    assert "has 8" in refusal.message


def test_recomputed_rows_are_reported() -> None:
    model = tiny_target("llama")
    engine = tiny_engine(model, num_pages=8)
    prompts = [[(5 * i + seed) % 61 for i in range(60)] for seed in range(2)]
    drivers = [Driver(engine, str(i)) for i in range(2)]
    drive_all(engine, drivers, prompts, 40)
    recomputed = sum(event.recomputed_tokens for event in drivers[1].events if isinstance(event, c.Verdict))
    assert recomputed > 0


def test_random_cancels_return_every_page() -> None:
    # D17: cancels at random stages; the pool is checked after every step.
    rng = random.Random(3)
    engine = table_engine(COUNTING, num_pages=24, prefill_rows=8, max_context=200)
    for name in range(200):
        driver = Driver(engine, str(name))
        prompt = [rng.randrange(50) for _ in range(rng.randrange(1, 60))]
        engine.apply(driver.open_command(prompt, params(rng.randrange(1, 40))))
        for _ in range(rng.randrange(6)):
            driver.take(engine.step())
            engine.requests.check_integrity()
        if driver.tokens and driver.finish_reason is None and driver.round == 0 and driver.events:
            engine.apply(driver.verify_command([1, 2, 3]))
        if rng.random() < 0.7:
            driver.close()
            engine.requests.check_integrity()
    engine.drop_coordinator("test")
    assert engine.pool.num_available == 24
    engine.requests.check_integrity()


def coupled_text(engine: Engine, name: str, key: bytes, v: int) -> list[int]:
    driver = Driver(engine, name)
    command = driver.open_command([1, 2, 3], params(16, temperature=0.1))
    command = c.Open(command.address, command.token_ids, 3, key, command.params, True)
    driver.round_trip(command)
    while driver.finish_reason is None:
        driver.verify([driver.tokens[-1]] * (v - 1))
    return driver.generated


def test_seeded_text_is_the_same_alone_and_beside_others() -> None:
    # A11, A12: neighbours never advance this request's stream; keys differ, texts differ.
    model = tiny_target("llama")
    alone = coupled_text(tiny_engine(model), "a", KEY, 1)
    engine = tiny_engine(model)
    drivers = [Driver(engine, f"n{i}") for i in range(3)]
    for i, driver in enumerate(drivers):
        command = driver.open_command([9, i], params(60, temperature=1.0))
        engine.apply(c.Open(command.address, command.token_ids, 2, bytes([i] * 16), command.params, True))
        engine.step()
        driver.round += 1
        engine.apply(c.Run(driver.address(), 3, 60))
    assert coupled_text(engine, "again", KEY, 1) == alone
    assert coupled_text(engine, "drafted", KEY, 4) == alone


def test_unseeded_requests_differ() -> None:
    flat = torch.zeros(1000, 1000)
    engine = table_engine(flat)
    texts = {tuple(coupled_text(engine, str(i), bytes([i] * 16), 1)) for i in range(8)}
    assert len(texts) == 8


def test_two_cohorts_of_one_coordinator_never_share_a_step() -> None:
    engine = table_engine(COUNTING)
    drivers = [Driver(engine, str(i)) for i in range(4)]
    for driver in drivers:
        driver.open(PROMPT, params(30))
    for i, driver in enumerate(drivers):
        engine.apply(driver.verify_command([], cohort=i % 2))
    first = {event.address.key.request_id for event in engine.step() if isinstance(event, c.Verdict)}
    second = {event.address.key.request_id for event in engine.step() if isinstance(event, c.Verdict)}
    assert (first, second) == ({"0", "2"}, {"1", "3"})


def test_verdicts_come_before_features() -> None:
    engine = table_engine(COUNTING)
    for name in "ab":
        engine.apply(Driver(engine, name).open_command(PROMPT, params(5)))
    kinds = [type(event) for event in engine.step()]
    assert kinds == [c.Verdict, c.Verdict, c.Features, c.Features]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"token_ids": ()}, "token_ids"),
        ({"token_ids": (1, 99)}, "token_ids"),
        ({"num_prompt_tokens": 0}, "num_prompt_tokens"),
        ({"num_prompt_tokens": 3}, "num_prompt_tokens"),
        ({"sampling_key": b"short"}, "sampling_key"),
        ({"params": params(0)}, "params.max_tokens"),
        ({"params": params(511)}, "params.max_tokens"),
    ],
)
def test_bad_opens_are_refused_by_field(change: dict[str, object], field: str) -> None:
    # D15: an empty prompt refuses one request; the engine goes on.
    engine = table_engine(COUNTING)
    good = Driver(engine, "good")
    good.open(PROMPT, params(5))
    values: dict[str, object] = {
        "address": c.Address(c.RequestKey("test", "bad"), 1, 0),
        "token_ids": PROMPT,
        "num_prompt_tokens": 2,
        "sampling_key": KEY,
        "params": params(5),
    }
    (refusal,) = engine.apply(c.Open(**{**values, **change}))  # type: ignore[arg-type]
    assert isinstance(refusal, c.Refused)
    assert (refusal.code, refusal.field) == (RefusalCode.INVALID_ARGUMENT, field)
    good.run(10)
    assert good.finish_reason is FinishReason.LENGTH


def test_bad_verify_is_refused_and_the_request_lives() -> None:
    engine = table_engine(COUNTING)
    driver = Driver(engine)
    driver.open(PROMPT, params(30))
    address = c.Address(driver.key, 1, 1)
    for proposals in ((50,), tuple(range(16))):
        (refusal,) = engine.apply(c.Verify(address, 3, proposals))
        assert isinstance(refusal, c.Refused)
        assert refusal.field == "proposals"
    driver.verify([10])
    assert driver.generated == [9, 10, 11]
