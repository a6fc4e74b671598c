"""Several choices of one prompt: distinct, repeatable, sharing the prompt's pages, released together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from coordinator.answer import Answer
from coordinator.delivery import Delivery
from coordinator.keys import derived_key, seed_key
from deploy.in_process import InProcess, in_process
from protos import coordinator_pb2
from protos.common_pb2 import (
    FINISH_REASON_ABORT,
    FINISH_REASON_ERROR,
    FINISH_REASON_LENGTH,
    FINISH_REASON_STOP,
)
from tests.coordinator_fakes import TableEngine, saying
from tests.coordinator_harness import ScriptedDrafter, TablePort, complete, make_coordinator, until
from tests.coordinator_harness import request as table_request
from tests.fakes import table_built

VOCAB = 61
PROMPT = [(7 * i) % VOCAB for i in range(37)]
COUNT = 40
OFF = coordinator_pb2.SPECULATION_MODE_OFF


def law() -> torch.Tensor:
    """A law with many likely tokens in every row, so that texts differ."""
    return torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(3))


def request(**fields: Any) -> coordinator_pb2.GenerateRequest:
    values = {"token_ids": PROMPT, "max_tokens": COUNT, "temperature": 1.0, "ignore_eos": True}
    return coordinator_pb2.GenerateRequest(**{**values, **fields})


async def answers_of(system: InProcess, message: coordinator_pb2.GenerateRequest) -> Answer:
    answers = Answer()
    generation = await system.coordinator.admit(message)
    async for response in generation.attach().messages():
        answers.add(response)
    assert answers.is_finished
    return answers


async def test_three_choices_are_distinct_stable_and_those_of_their_seeds() -> None:
    """C7."""
    async with in_process(table_built(law()), None) as system:
        first = await answers_of(system, request(n=3, seed=7))
        texts = [choice.token_ids for choice in first.choices]
        assert len(texts) == 3
        assert len({tuple(text) for text in texts}) == 3
        again = await answers_of(system, request(n=3, seed=7))
        assert [choice.token_ids for choice in again.choices] == texts
        alone = [await answers_of(system, request(seed=7 + index)) for index in range(3)]
        assert [answers.choices[0].token_ids for answers in alone] == texts
        assert [choice.finish_reason for choice in first.choices] == [FINISH_REASON_LENGTH] * 3
        assert first.sampling_keys == [seed_key(7 + index) for index in range(3)]


async def test_without_a_seed_choices_are_distinct_and_each_can_be_resumed() -> None:
    async with in_process(table_built(law()), None) as system:
        whole = await answers_of(system, request(n=3))
        assert len({tuple(choice.token_ids) for choice in whole.choices}) == 3
        assert whole.sampling_keys[2] == derived_key(whole.sampling_keys[0], 2)
        for choice, key in zip(whole.choices, whole.sampling_keys, strict=True):
            resume = coordinator_pb2.Resume(token_ids=choice.token_ids[:9], sampling_key=key)
            rest = await answers_of(system, request(resume=resume))
            assert choice.token_ids[:9] + rest.choices[0].token_ids == choice.token_ids


@pytest.mark.parametrize("source", ["off", "lookup"])
async def test_the_prompt_is_computed_and_counted_once(source: str) -> None:
    built = table_built(law())
    message = request(n=4, seed=1)
    if source == "off":
        message.speculation.mode = OFF
    async with in_process(built, None) as system:
        answers = await answers_of(system, message)
    usages = [choice.finished.usage for choice in answers.choices]
    assert [usage.prompt_tokens for usage in usages] == [len(PROMPT), 0, 0, 0]
    assert [usage.completion_tokens for usage in usages] == [COUNT] * 4
    if source == "off":
        # The prompt, the last prompt token again for each fork, then one row for each later token.
        assert built.engine.num_rows == len(PROMPT) + 3 + 4 * (COUNT - 1)


async def test_a_stream_left_after_choice_0_ended_releases_all() -> None:
    """C7: each choice has its own end, and the last reader takes all of them along."""
    built = table_built(law())
    async with in_process(built, None) as system:
        texts = [c.token_ids for c in (await answers_of(system, request(n=3, seed=7))).choices]
        others = set(texts[1][:30]) | set(texts[2][:30])
        stop = next(token for token in texts[0][:20] if token not in others)
        free = built.engine.pool.num_available
        message = request(n=3, seed=7, stop_token_ids=[stop], max_tokens=400)
        generation = await system.coordinator.admit(message)
        reader = generation.attach()
        async for response in reader.messages():
            if response.HasField("finished"):
                break
        assert response.finished.index == 0
        assert response.finished.finish_reason == FINISH_REASON_STOP
        generation.detach(reader)
        await generation.wait_ended()
        rest = Answer()
        async for response in generation.attach().messages():
            rest.add(response)
        assert [choice.finish_reason for choice in rest.choices] == [
            FINISH_REASON_STOP,
            FINISH_REASON_ABORT,
            FINISH_REASON_ABORT,
        ]
        await until(lambda: len(built.engine.requests) == 0)
        assert built.engine.pool.num_available == free
        built.engine.requests.check_integrity()


async def test_deltas_of_choices_carry_their_index_and_their_own_position() -> None:
    engine = TableEngine(saying("one two three, one two three"))
    coordinator = make_coordinator(TablePort(engine), ScriptedDrafter(engine, 2))
    answers = Answer()
    generation = await coordinator.admit(table_request(n=3, k=4))
    async for response in generation.attach().messages():
        answers.add(response)  # raises at a gap
    assert [choice.text for choice in answers.choices] == ["one two three, one two three"] * 3
    opened = [request_id for request_id, kind in engine.log if kind == "open"]
    assert opened[0] == generation.request.request_id
    assert len(opened) == 3
    assert len(engine.closes) == 3
    assert not engine.sequences


async def test_one_token_each() -> None:
    """The first choice is over before the others begin."""
    async with in_process(table_built(law()), None) as system:
        answers = await answers_of(system, request(n=3, seed=7, max_tokens=1))
        assert [len(choice.token_ids) for choice in answers.choices] == [1, 1, 1]


async def test_an_abort_before_the_first_verdict_finishes_every_choice() -> None:
    engine = TableEngine()
    coordinator = make_coordinator(TablePort(engine, on_command=lambda command: []), resend_seconds=60)
    generation = await coordinator.admit(table_request(n=3, request_id="r"))
    reader = generation.attach()
    await asyncio.sleep(0)
    assert coordinator.abort("r")
    answers = Answer()
    async for response in reader.messages():
        answers.add(response)
    assert [choice.finish_reason for choice in answers.choices] == [FINISH_REASON_ABORT] * 3
    assert coordinator.num_running == 0


@pytest.mark.parametrize("fails_at", ["take", "flush"])
async def test_a_fault_in_a_text_ends_it_and_gives_its_place_back(
    fails_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held text that cannot be said must not keep the end from being said."""

    def failing(*_: object) -> int:
        raise RuntimeError("secret of the implementation")

    monkeypatch.setattr(Delivery, fails_at, failing)
    if fails_at == "take":
        monkeypatch.setattr(Delivery, "flush", failing)
    engine = TableEngine(saying("one two three"))
    coordinator = make_coordinator(TablePort(engine))
    async with asyncio.timeout(10):
        answer, _, failure = await complete(coordinator, table_request(max_tokens=5))
    assert answer.finish_reason == FINISH_REASON_ERROR
    assert failure is not None
    assert "reference" in str(failure)
    assert "secret" not in str(failure)
    assert coordinator.num_running == 0
    assert not engine.sequences
