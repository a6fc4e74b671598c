"""Speculation of a running request, turned off and on again: nothing is kept between rounds, so the
text does not notice (issue: on-off-on in mid-request)."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.answer import Answer
from coordinator.client import AsyncClient
from deploy.in_process import InProcess, in_process
from protos import coordinator_pb2
from protos.coordinator_pb2 import (
    PROPOSAL_SOURCE_DRAFTER,
    PROPOSAL_SOURCE_LOOKUP,
    SPECULATION_MODE_COUPLED,
    SPECULATION_MODE_OFF,
    SPECULATION_MODE_REJECTION,
    Speculation,
)
from protos.errors import InvalidRequest
from tests.conformance import (
    BLOCK,
    MODES,
    GatedDrafter,
    ScriptedDrafter,
    differences,
    generate,
    request,
    target,
    tokenizer,
)
from tests.system.stack import stack

FIELDS = {"max_tokens": 450, "ignore_eos": True, "frequency_penalty": 0.05, "logprobs": True}
ON = Speculation(source=PROPOSAL_SOURCE_DRAFTER, num_draft_tokens=2, verify_block_size=3)
# What is set when so many tokens have come.
PLAN = [
    (60, Speculation(mode=SPECULATION_MODE_OFF)),
    (130, ON),
    (200, Speculation(source=PROPOSAL_SOURCE_LOOKUP, num_draft_tokens=4)),
    (260, Speculation(source=PROPOSAL_SOURCE_DRAFTER, num_draft_tokens=7)),
    (320, Speculation(mode=SPECULATION_MODE_OFF)),
    (380, ON),
]


@pytest.mark.parametrize("mode", MODES)
async def test_on_off_on_changes_no_token(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The text is never more than two messages ahead of its reader.
    monkeypatch.setenv("DLITE_COORDINATOR_MAX_QUEUED_DELTAS", "2")
    drafter = ScriptedDrafter()
    async with in_process(target(), drafter, tokenizer()) as system:
        plain = await generate(system, request("plain", FIELDS, MODES[mode], 0, 1))
        message = request("switched", FIELDS, MODES[mode], 3, 1)
        drafter.record(message, plain, 1)
        generation = await system.coordinator.admit(message)
        found, left = Answer(), list(PLAN)
        async for response in generation.attach().messages():
            found.add(response)
            if left and len(found.token_ids) >= left[0][0]:
                assert set_speculation(system, left.pop(0)[1])
    assert left == []
    assert found.token_ids == plain.answer.token_ids
    ledger = found.finished.ledger
    assert ledger.num_run_tokens > 60
    assert ledger.num_draft_rounds - ledger.num_lookup_rounds > 60
    assert differences(type(plain)(found), plain) == []


def set_speculation(system: InProcess, speculation: Speculation, request_id: str = "switched") -> bool:
    change = coordinator_pb2.SetSpeculationRequest(request_id=request_id, speculation=speculation)
    return system.coordinator.set_speculation(change)


async def test_what_cannot_be_changed_is_named() -> None:
    async with in_process(target(), ScriptedDrafter(), tokenizer()) as system:
        assert not set_speculation(system, ON, "nobody")
        message = request("switched", FIELDS, 1.0, 0)
        generation = await system.coordinator.admit(message)
        outlet = generation.attach()
        for wrong, field in (
            (Speculation(mode=SPECULATION_MODE_REJECTION), "speculation.mode"),
            (Speculation(num_draft_tokens=99), "speculation.num_draft_tokens"),
            (Speculation(verify_block_size=0), "speculation.verify_block_size"),
        ):
            with pytest.raises(InvalidRequest) as caught:
                set_speculation(system, wrong)
            assert caught.value.field == field
        assert set_speculation(system, Speculation(mode=SPECULATION_MODE_COUPLED))
        generation.detach(outlet)


async def test_it_is_a_call_of_the_public_api() -> None:
    drafter = GatedDrafter(hold_at=4)
    async with (
        stack(target(), drafter, draft_timeout_seconds=60.0) as system,
        AsyncClient(system.coordinator.address) as client,
    ):
        plain = await client.complete(request("plain", FIELDS, 0.0, 0, 1))
        message = request("switched", FIELDS, 0.0, 3, 1)
        drafter.texts["switched"] = [*message.token_ids, *plain.token_ids]
        drafter.num_right["switched"] = BLOCK
        task = asyncio.create_task(client.complete(message))
        assert await asyncio.to_thread(drafter.reached.wait, 60)
        assert await client.set_speculation("switched", Speculation(mode=SPECULATION_MODE_OFF))
        drafter.gate.set()
        found = await task
        assert not await client.set_speculation("switched", ON)
    assert found.token_ids == plain.token_ids
    assert found.finished.ledger.num_draft_rounds == 4
    assert found.finished.ledger.num_run_tokens > 400
