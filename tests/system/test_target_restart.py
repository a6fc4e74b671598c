"""The target goes away in mid-text and comes back empty: no token is lost, none comes twice (F4)."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.answer import Answer
from coordinator.client import AsyncClient
from coordinator.startup import start_coordinator
from deploy.in_process import in_process
from protos import coordinator_pb2
from target_service.service import serve as serve_target
from tests.coordinator_harness import make_config
from tests.fakes import GOLDEN
from tests.system.stack import golden_target

DRAFT = GOLDEN / "draft_trained_g1"
PROMPT = [61, 70, 22, 78, 216]
COUNT = 150


def request(temperature: float) -> coordinator_pb2.GenerateRequest:
    return coordinator_pb2.GenerateRequest(
        token_ids=PROMPT, max_tokens=COUNT, temperature=temperature, seed=4, ignore_eos=True
    )


async def plain_ids(temperature: float) -> list[int]:
    answer = Answer()
    async with in_process(golden_target(DRAFT, "float64"), None) as system:
        generation = await system.coordinator.admit(request(temperature))
        async for response in generation.attach().messages():
            answer.add(response)
    return answer.token_ids


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_restart_between_rounds_costs_no_token(temperature: float) -> None:
    expected = await plain_ids(temperature)
    target = await serve_target(golden_target(DRAFT, "float64"), "127.0.0.1:0")
    running = await start_coordinator(make_config(target_address=target.address, resend_seconds=1.0))
    answer = Answer()
    async with AsyncClient(running.address) as client:
        async for message in client.generate(request(temperature)):
            answer.add(message)  # raises at a gap or a repeat
            if len(answer.token_ids) >= 20 and target is not None:
                address, old, target = target.address, target, None
                await old.stop(0)
                await asyncio.sleep(1.0)  # the outage, not a way to wait for something
                new = await serve_target(golden_target(DRAFT, "float64"), address)
    assert answer.token_ids == expected
    assert answer.finished.ledger.num_reopens >= 1
    assert answer.usage.completion_tokens == COUNT
    await running.stop()
    await new.stop()
