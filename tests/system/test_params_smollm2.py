"""A sample of the conformance suite on a real model: parameters under speculation equal plain decoding."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import torch

from coordinator.tokenizer import load_tokenizer
from deploy.bench.grammar import SCHEMA
from deploy.demo_model import DEMO_MODEL, resolve_model
from deploy.in_process import in_process
from protos import coordinator_pb2
from target_service.build import build
from target_service.config import TargetConfig
from tests.conformance import MODES, ScriptedDrafter, differences, generate_all

MAX_TOKENS = 32
# Two float32 runs may part where two tokens are equal up to rounding: the yardsticks' bound.
MAX_TIES_PER_THOUSAND = 3
PROMPTS = ("Name three rivers and say where they are.", "Write a JSON object that describes a cat.")
PARAMETERS: dict[str, dict[str, Any]] = {
    "filters": {"top_k": 50, "top_p": 0.9, "min_p": 0.02},
    "penalties": {"presence_penalty": 0.8, "frequency_penalty": 0.6, "repetition_penalty": 1.2},
    "logit_bias": {"logit_bias": {28: -100.0, 284: 3.0}},
    "allowed_token_ids": {"allowed_token_ids": list(range(0, 20_000))},
    "bad_words": {"bad_words": ["the", "river", "cat"]},
    "min_tokens": {"min_tokens": MAX_TOKENS - 2},
    "stop": {"stop": [" a", "\n"]},
    "logprobs": {"logprobs": True, "top_logprobs": 3, "prompt_logprobs": True},
    "json_schema": {"response_format": {"json_schema": json.dumps(SCHEMA)}},
    "regex": {"response_format": {"regex": "[A-Z][a-z]+( [a-z]+){3,9}\\."}},
    "together": {
        "response_format": {"json_schema": json.dumps(SCHEMA)},
        "frequency_penalty": 0.5,
        "top_p": 0.95,
        "min_tokens": 12,
        "logprobs": True,
    },
}


def request(name: str, fields: dict[str, Any], temperature: float, prompt: str, v: int) -> Any:
    values = {"temperature": temperature, "seed": 3, "max_tokens": MAX_TOKENS, "prompt": prompt, **fields}
    message = coordinator_pb2.GenerateRequest(request_id=name, **values)
    message.speculation.source = coordinator_pb2.PROPOSAL_SOURCE_DRAFTER
    if v:
        message.speculation.num_draft_tokens, message.speculation.verify_block_size = v - 1, v
    else:
        message.speculation.mode = coordinator_pb2.SPECULATION_MODE_OFF
    return message


@pytest.mark.prove
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", MODES)
async def test_parameters_of_smollm2(mode: str) -> None:
    torch.set_num_threads(1)
    config = TargetConfig.load(None, target=str(resolve_model(DEMO_MODEL)))
    built = await asyncio.to_thread(build, config)
    tokenizer = load_tokenizer(built.tokenizer_files, built.description.tokenizer_hash)
    drafter = ScriptedDrafter()
    cases = [(name, prompt) for name in PARAMETERS for prompt in PROMPTS]
    async with in_process(built, drafter, tokenizer) as system:
        plain = await generate_all(
            system,
            [request(f"{n}:{p}:plain", PARAMETERS[n], MODES[mode], p, 0) for n, p in cases],
        )
        messages = []
        for (name, prompt), reference, j in zip(cases, plain, [0, 2, 4] * len(cases), strict=False):
            assert reference.error == "", name
            message = request(f"{name}:{prompt}:{j}", PARAMETERS[name], MODES[mode], prompt, 5)
            drafter.texts[message.request_id] = [*tokenizer.encode(prompt), *reference.answer.token_ids]
            drafter.num_right[message.request_id] = j
            messages.append(message)
        found = await generate_all(system, messages)
    wrong = [
        (m.request_id, d) for m, f, p in zip(messages, found, plain, strict=True) if (d := differences(f, p))
    ]
    num_tokens = sum(len(one.answer.token_ids) for one in plain)
    print(f"{num_tokens} tokens compared, {len(wrong)} texts part", *wrong, sep="\n")
    assert num_tokens > 300
    assert len(wrong) * 1000 <= MAX_TIES_PER_THOUSAND * num_tokens
