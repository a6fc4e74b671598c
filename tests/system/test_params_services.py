"""Each parameter once through the three services over gRPC, and a target that restarts in mid-text."""

from __future__ import annotations

import asyncio
import itertools
import json

import pytest
import torch

from coordinator.client import AsyncClient
from protos import coordinator_pb2
from protos.coordinator_pb2 import SPECULATION_MODE_OFF, SPECULATION_MODE_REJECTION
from protos.errors import DliteError
from target_service.commands import SamplingParams
from target_service.loader import load
from target_service.sampling import RowParams, filtered_log_law
from target_service.service import serve as serve_target
from tests.conformance import (
    BLOCK,
    DRAFT_TABLE,
    MODES,
    PARAMETERS,
    PROMPTS,
    TABLE,
    GatedDrafter,
    Outcome,
    ScriptedDrafter,
    V,
    differences,
    request,
    sent_params,
    target,
)
from tests.fakes import GOLDEN, TableDrafter
from tests.slow_law import Text, law
from tests.system.stack import golden_target, stack
from tests.test_conformance_rejection import LawTest

J = 2
GOLDEN_DRAFT = GOLDEN / "draft_trained_g1"


async def complete(client: AsyncClient, message: coordinator_pb2.GenerateRequest) -> Outcome:
    outcome = Outcome()
    try:
        async for response in client.generate(message):
            outcome.answer.add(response)
    except DliteError as error:
        outcome.error = str(error)
    return outcome


@pytest.mark.parametrize("mode", MODES)
async def test_each_parameter_once(mode: str) -> None:
    drafter = ScriptedDrafter()
    async with stack(target(), drafter) as system, AsyncClient(system.coordinator.address) as client:
        for (name, fields), prompt in itertools.product(PARAMETERS.items(), range(len(PROMPTS))):
            plain = await complete(client, request(f"{name}{prompt}", fields, MODES[mode], 0, prompt))
            message = request(f"{name}{prompt}-drafted", fields, MODES[mode], 5, prompt)
            drafter.record(message, plain, J)
            found = await complete(client, message)
            assert differences(found, plain) == [], name
            assert found.answer.finished.ledger.num_draft_rounds or len(plain.answer.token_ids) < 3


async def test_rejection_over_the_wire() -> None:
    """Laws travel with the proposals and the text follows p, with a filter and a penalty."""
    fields = {"top_p": 0.8, "frequency_penalty": 0.5, "ignore_eos": True, "max_tokens": 24}
    test = LawTest(V)
    drafter = TableDrafter(DRAFT_TABLE, BLOCK - 1)
    async with stack(target(), drafter) as system, AsyncClient(system.coordinator.address) as client:
        messages = [request(f"r{i}", {**fields, "seed": i}, 1.0, 4, i % 2) for i in range(64)]
        for message in messages:
            message.speculation.mode = SPECULATION_MODE_REJECTION
        answers = await asyncio.gather(*[client.complete(message) for message in messages])
    for message, answer in zip(messages, answers, strict=True):
        text = [*message.token_ids, *answer.token_ids]
        for place in range(len(message.token_ids), len(text)):
            before = Text(message.token_ids, text[len(message.token_ids) : place], frozenset())
            test.add(text[place], law(TABLE[text[place - 1]].tolist(), sent_params(message), before))
    assert sum(answer.usage.accepted_tokens for answer in answers) > 200
    test.check()


NUMBERS = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": 99},
    "minItems": 6,
    "maxItems": 8,
}
RESTARTED = {
    "response_format": {"json_schema": json.dumps(NUMBERS)},
    "frequency_penalty": 0.9,
    "min_tokens": 15,
    "logprobs": True,
    "top_logprobs": 2,
    "max_tokens": 40,
}


@pytest.mark.parametrize("mode", MODES)
async def test_a_restart_in_mid_text_changes_nothing(mode: str) -> None:
    """Ids, log-probabilities and usage equal those of plain decoding without a restart."""
    drafter = GatedDrafter(hold_at=3)
    async with (
        stack(target(), drafter, draft_timeout_seconds=60.0) as system,
        AsyncClient(system.coordinator.address) as client,
    ):
        plain = await complete(client, request("plain", RESTARTED, MODES[mode], 0, 1))
        message = request("drafted", RESTARTED, MODES[mode], 4, 1)
        drafter.record(message, plain, J)
        task = asyncio.create_task(complete(client, message))
        assert await asyncio.to_thread(drafter.reached.wait, 60)
        address = system.target.address
        await system.target.stop(0)
        again = await serve_target(target(), address)
        drafter.gate.set()
        found = await task
        await again.stop()
    assert found.answer.finished.ledger.num_reopens >= 1
    assert len(json.loads(found.answer.text)) >= 6
    assert differences(found, plain) == []
    assert found.answer.usage.completion_tokens == plain.answer.usage.completion_tokens
    assert found.answer.usage.prompt_tokens == plain.answer.usage.prompt_tokens


@pytest.mark.parametrize("mode", MODES)
async def test_alone_and_among_sixteen_others(mode: str) -> None:
    fields = {"frequency_penalty": 0.9, "logprobs": True, "top_p": 0.9}
    drafter = ScriptedDrafter()
    async with stack(target(), drafter) as system, AsyncClient(system.coordinator.address) as client:
        alone = await complete(client, request("alone", fields, MODES[mode], 0, 1))
        others = []
        for i, name in enumerate(list(PARAMETERS)[:16]):
            message = request(f"other{i}", {**PARAMETERS[name], "seed": 90 + i}, 1.0, 0, i % 2)
            message.speculation.mode = SPECULATION_MODE_OFF
            others.append(message)
        again = [request(f"again{v}", fields, MODES[mode], v, 1) for v in (2, 5, 8)]
        for message in again:
            drafter.record(message, alone, 1)
        answers = await asyncio.gather(*[complete(client, message) for message in [*others, *again]])
    for found in answers[len(others) :]:
        assert differences(found, alone) == []


async def test_rejection_with_a_dlite_drafter_follows_the_models_law() -> None:
    """A real model and a real drafter over the wire: every token against the law of its prefix."""
    built = golden_target(GOLDEN_DRAFT)
    prompt, count, num_texts = [61, 70, 22, 78, 216], 24, 48
    fields = {"ignore_eos": True, "max_tokens": count, "token_ids": prompt, "top_k": 40}
    async with stack(built, GOLDEN_DRAFT) as system, AsyncClient(system.coordinator.address) as client:
        messages = [request(f"r{i}", {**fields, "seed": i}, 0.8, 6) for i in range(num_texts)]
        for message in messages:
            message.temperature = 0.8
            message.speculation.mode = SPECULATION_MODE_REJECTION
        answers = await asyncio.gather(*[client.complete(message) for message in messages])
    ledgers = [answer.finished.ledger for answer in answers]
    assert sum(ledger.num_undrafted_rounds for ledger in ledgers) == 0
    assert sum(answer.usage.accepted_tokens for answer in answers) > 30
    model = load(str(GOLDEN / "target_qwen3"), "float32", "cpu").model
    test = LawTest(model.config.vocab_size)
    params = [
        RowParams(SamplingParams(temperature=0.8, top_k=40), bytes(16), place) for place in range(count)
    ]
    for answer in answers:
        text = torch.tensor([[*prompt, *answer.token_ids]])
        logits = model(text).logits[0, len(prompt) - 1 : -1]
        for token, row in zip(answer.token_ids, filtered_log_law(logits, params).exp(), strict=True):
            test.add(token, row.tolist())
    test.check()
