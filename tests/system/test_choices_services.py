"""Several choices on a real model: forks share its KV, and each is the text of its seed alone (C7)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from coordinator.answer import Answer
from coordinator.client import AsyncClient
from deploy.in_process import in_process
from protos import coordinator_pb2
from target_service.build import assemble
from target_service.config import TargetConfig
from target_service.loader import from_model
from tests.fakes import GOLDEN, tiny_target
from tests.system.stack import golden_target, stack

DRAFT = GOLDEN / "draft_trained_g1"
PROMPT = [(11 * i + 3) % 60 for i in range(37)]
COUNT = 40


def request(seed: int, **fields: Any) -> coordinator_pb2.GenerateRequest:
    return coordinator_pb2.GenerateRequest(
        token_ids=PROMPT, max_tokens=COUNT, temperature=1.0, seed=seed, ignore_eos=True, **fields
    )


@pytest.mark.parametrize("source", ["DRAFTER", "LOOKUP_THEN_DRAFTER"])
async def test_choices_are_the_texts_of_their_seeds(source: str) -> None:
    speculation = coordinator_pb2.Speculation(source=f"PROPOSAL_SOURCE_{source}")
    async with (
        stack(golden_target(DRAFT, "float64"), DRAFT) as system,
        AsyncClient(system.coordinator.address) as client,
    ):
        answer = await client.complete(request(7, n=3, speculation=speculation))
        alone = [await client.complete(request(7 + index, speculation=speculation)) for index in range(3)]
    texts = [choice.token_ids for choice in answer.choices]
    assert texts == [one.token_ids for one in alone]
    assert len({tuple(text) for text in texts}) == 3
    assert [choice.finished.usage.prompt_tokens for choice in answer.choices] == [len(PROMPT), 0, 0]


@pytest.mark.parametrize("num_pages", [7, 12, 64])
async def test_too_few_pages_for_all_choices_change_no_token(num_pages: int) -> None:
    """Each text takes 5 pages of 16; forks are evicted and come back."""
    torch.set_num_threads(1)
    config = TargetConfig.load(None, target="tiny", num_pages=num_pages, num_tapped_layers=3)
    built = assemble(from_model(tiny_target("llama"), GOLDEN / "target_qwen3"), config)
    async with in_process(built, None) as system:

        async def ask(message: coordinator_pb2.GenerateRequest) -> Answer:
            answer = Answer()
            generation = await system.coordinator.admit(message)
            async for response in generation.attach().messages():
                answer.add(response)
            return answer

        alone = [await ask(request(7 + index)) for index in range(3)]
        both = await asyncio.gather(ask(request(7, n=3)), ask(request(8, n=2)))
    assert [choice.token_ids for choice in both[0].choices] == [one.token_ids for one in alone]
    assert [choice.token_ids for choice in both[1].choices] == [one.token_ids for one in alone[1:]]
