"""Log-probabilities: those of the raw logits, of every delivered token, whatever was proposed
(pitfalls B4, C6)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
import torch

from deploy.in_process import in_process
from protos import coordinator_pb2
from protos.common_pb2 import FINISH_REASON_STOP, PositionLogprobs
from target_service import commands as c
from target_service.logprobs import NO_LAW, position_logprobs
from tests.conformance import (
    BLOCK,
    EOS,
    PROMPTS,
    TABLE,
    ScriptedDrafter,
    V,
    encode,
    generate,
    request,
    target,
    tokenizer,
)
from tests.fakes import (
    Driver,
    TableDrafter,
    params,
    plain_greedy,
    table_built,
    table_engine,
    tiny_engine,
    tiny_target,
)

LAW = torch.log_softmax(TABLE, dim=-1)  # [V, V] given the last token


def check(found: Sequence[PositionLogprobs], text: Sequence[int], start: int, num_top: int) -> None:
    """Entries of text[start:] equal the table's own law, best first."""
    for place, entry in enumerate(found, start=start):
        law = LAW[text[place - 1]]
        assert entry.chosen.token_id == text[place]
        assert entry.chosen.logprob == pytest.approx(float(law[text[place]]), abs=1e-4)
        best = law.topk(num_top)
        assert [item.token_id for item in entry.top] == best.indices.tolist()
        assert [item.logprob for item in entry.top] == pytest.approx(best.values.tolist(), abs=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 1.3])
@pytest.mark.parametrize("v", [0, 3, BLOCK])
async def test_they_are_of_the_raw_law(v: int, temperature: float) -> None:
    """Penalties, temperature and top-k shape the draw, not what is reported."""
    fields = {
        "logprobs": True,
        "top_logprobs": 3,
        "frequency_penalty": 1.5,
        "top_k": 5,
        "temperature": temperature,
    }
    async with in_process(target(), TableDrafter(TABLE, BLOCK - 1), tokenizer()) as system:
        answer = (await generate(system, request("r", fields, temperature, v, 1))).answer
    choice = answer.choices[0]
    assert len(choice.logprobs) == len(choice.token_ids) > 0
    check(choice.logprobs, [*PROMPTS[1], *choice.token_ids], len(PROMPTS[1]), 3)
    assert any(entry.chosen.logprob < -0.01 for entry in choice.logprobs)


async def test_a_stop_string_cuts_ids_and_logprobs_alike() -> None:
    # B4: stop "b", one block of 9 one-letter tokens, two top log-probabilities.
    letters = [encode(letter)[0] for letter in "cjbdefghi0"]
    table = torch.zeros(V, V)
    for one, other in zip([encode("a")[0], *letters], letters, strict=False):
        table[one, other] = 9.0
    drafter = ScriptedDrafter()
    built = table_built(table, num_pages=64, eos_ids=frozenset({EOS}))
    async with in_process(built, drafter, tokenizer()) as system:
        message = coordinator_pb2.GenerateRequest(
            request_id="b4", token_ids=encode("a"), temperature=0.0, max_tokens=10, stop=["b"], logprobs=True
        )
        message.top_logprobs = 2
        message.speculation.source = coordinator_pb2.PROPOSAL_SOURCE_DRAFTER
        drafter.texts["b4"], drafter.num_right["b4"] = [*encode("a"), *letters], BLOCK - 1
        answer = (await generate(system, message)).answer
    assert answer.token_ids == letters[:3]
    assert answer.text == "cj"
    assert answer.finish_reason == FINISH_REASON_STOP
    assert len(answer.choices[0].logprobs) == answer.usage.completion_tokens == 3
    assert all(len(entry.top) == 2 for entry in answer.choices[0].logprobs)


async def test_prompt_logprobs_come_before_any_token() -> None:
    fields = {"prompt_logprobs": True, "top_logprobs": 2, "n": 2}
    async with in_process(target(), None, tokenizer()) as system:
        for name in ("first", "cached"):  # the second time the prompt's pages are known
            message = request(name, {**fields, "token_ids": PROMPTS[0] * 9}, 1.0, 0)
            generation = await system.coordinator.admit(message)
            outlet = generation.attach()
            bodies = [response async for response in outlet.messages()]
            started = bodies[0].started
            assert sum(body.HasField("started") for body in bodies) == 1
            assert len(started.prompt_logprobs) == started.num_prompt_tokens == len(PROMPTS[0]) * 9
            assert not started.prompt_logprobs[0].HasField("chosen")
            check(started.prompt_logprobs[1:], PROMPTS[0] * 9, 1, 2)


async def test_an_aborted_request_still_says_started_first() -> None:
    async with in_process(target(), None, tokenizer()) as system:
        generation = await system.coordinator.admit(request("r", {"prompt_logprobs": True}, 1.0, 0))
        outlet = generation.attach()
        generation.abort()
        bodies = [response.WhichOneof("body") async for response in outlet.messages()]
    assert bodies[0] == "started"
    assert bodies[-1] == "finished"


@pytest.mark.parametrize("chunk", [5, 16, 64])
def test_prompt_logprobs_of_a_model_for_every_chunking(chunk: int) -> None:
    model = tiny_target("llama")
    prompt = [(7 * i + 3) % 61 for i in range(40)]
    law = torch.log_softmax(model(torch.tensor([prompt])).logits[0], dim=-1)
    driver = Driver(tiny_engine(model, prefill_rows=chunk))
    verdict = driver.open(prompt, params(4, prompt_logprobs=True, top_logprobs=2, logprobs=True))
    assert verdict.prompt_logprobs[0] == NO_LAW
    assert len(verdict.prompt_logprobs) == len(prompt)
    for place, entry in enumerate(verdict.prompt_logprobs[1:], start=1):
        assert entry.chosen is not None
        assert entry.chosen.token_id == prompt[place]
        assert entry.chosen.logprob == pytest.approx(float(law[place - 1, prompt[place]]), abs=1e-9)
    driver.run(9)
    assert driver.generated == plain_greedy(model, prompt, 4)


def test_prompt_logprobs_survive_an_eviction_in_mid_prompt() -> None:
    model = tiny_target("llama")
    long, short = [(3 * i) % 61 for i in range(60)], [(5 * i) % 61 for i in range(30)]
    settings = params(2, prompt_logprobs=True)
    expected = Driver(tiny_engine(model)).open(long, settings)
    engine = tiny_engine(model, num_pages=6, prefill_rows=16)
    old, new = Driver(engine, "old"), Driver(engine, "new")
    old.open(short, params(40))
    new.take(engine.apply(new.open_command(long, settings)))
    new.take(engine.step())
    old.round += 1
    old.take(engine.apply(c.Run(old.address(), old.committed_length, 40, False)))
    while new.finish_reason is None or old.finish_reason is None:
        events = engine.step()
        old.take(events)
        new.take(events)
        if new.last_verdict() is not None and new.finish_reason is None and new.round == 0:
            new.round = 1
            new.take(engine.apply(c.Run(new.address(), new.committed_length, 9, False)))
    assert any(isinstance(event, c.Preempted) for event in new.events)
    opened = next(event for event in new.events if isinstance(event, c.Verdict))
    assert [e.chosen and e.chosen.token_id for e in opened.prompt_logprobs] == [None, *long[1:]]
    for one, other in zip(opened.prompt_logprobs[1:], expected.prompt_logprobs[1:], strict=True):
        assert one.chosen is not None
        assert other.chosen is not None
        assert one.chosen.logprob == pytest.approx(other.chosen.logprob, abs=1e-9)


def test_a_resent_run_is_answered_with_all_its_logprobs() -> None:
    driver = Driver(table_engine(TABLE))
    driver.open([1, 2], params(9, logprobs=True))
    driver.run(5)
    last = c.Run(driver.address(), driver.committed_length - 5, 5, False)
    (whole, *_) = driver.engine.apply(last)
    assert isinstance(whole, c.Verdict)
    assert [entry.chosen.token_id for entry in whole.logprobs if entry.chosen] == list(whole.tokens)
    assert len(whole.tokens) == 5


def test_rows_want_different_numbers_of_tops() -> None:
    logits = torch.randn(3, V, generator=torch.Generator().manual_seed(0))
    found = position_logprobs(logits, [1, 2, 3], [0, 2, 5])
    assert [len(entry.top) for entry in found] == [0, 2, 5]
    assert position_logprobs(logits[:0], [], []) == []


def test_they_are_float32_of_bf16_logits() -> None:
    logits = torch.randn(1, 1000, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    (entry,) = position_logprobs(logits, [7], [1])
    assert entry.chosen is not None
    assert entry.chosen.logprob == pytest.approx(float(torch.log_softmax(logits.float(), -1)[0, 7]), abs=1e-6)


async def test_a_request_without_logprobs_carries_none() -> None:
    async with in_process(target(), None, tokenizer()) as system:
        answers = await asyncio.gather(
            generate(system, request("with", {"logprobs": True}, 0.0, 0)),
            generate(system, request("without", {}, 0.0, 0)),
        )
    assert answers[0].answer.choices[0].logprobs
    assert not answers[1].answer.choices[0].logprobs
