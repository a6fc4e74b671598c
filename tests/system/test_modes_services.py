"""One run of each mode and source through three services over gRPC, in float64."""

from __future__ import annotations

import asyncio

import pytest

from protos import coordinator_pb2
from tests.fakes import GOLDEN, plain_greedy
from tests.system.stack import Reply, Stack, ask, golden_target, request, stack

DRAFT = GOLDEN / "draft_trained_g1"
PROMPTS = [[61, 70, 22, 78, 216], [(11 * i + 3) % 250 for i in range(40)], [7], [5, 6] * 9]
COUNT = 24


async def replies(system: Stack, temperature: float, v: int, source: str = "DRAFTER") -> list[Reply]:
    messages = [request(prompt, COUNT, temperature, v) for prompt in PROMPTS]
    for message in messages:
        message.speculation.source = coordinator_pb2.ProposalSource.Value(f"PROPOSAL_SOURCE_{source}")
    return list(await asyncio.gather(*[ask(system.coordinator.address, message) for message in messages]))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_every_source_gives_the_plain_text(temperature: float) -> None:
    built = golden_target(DRAFT, "float64")
    async with stack(built, DRAFT) as system:
        plain = await replies(system, temperature, 0)
        texts = [reply.token_ids for reply in plain]
        if temperature == 0.0:
            model = built.engine._model.model  # type: ignore[attr-defined]
            # generate switches kernels for a moment; nothing else runs meanwhile
            assert texts == [plain_greedy(model, prompt, COUNT) for prompt in PROMPTS]
        for v in (1, 4, 8):
            for source in ("DRAFTER", "LOOKUP", "LOOKUP_THEN_DRAFTER", "AUTO"):
                drafted = await replies(system, temperature, v, source)
                assert [reply.token_ids for reply in drafted] == texts, (v, source)
                rounds = sum(reply.finished.ledger.num_draft_rounds for reply in drafted)
                assert rounds == 0 if v == 1 else rounds > 0 or source == "LOOKUP"
        assert all(reply.finished.ledger.feature_bytes == 0 for reply in plain)
        engine = built.engine
        assert engine.pool.num_available == engine.pool.num_pages


async def test_one_token_asks_no_drafter() -> None:
    # B6: max_tokens 1 makes no draft call; K is cut to what remains.
    async with stack(golden_target(DRAFT), DRAFT) as system:
        reply = await ask(system.coordinator.address, request(PROMPTS[0], 1))
        assert len(reply.token_ids) == 1
        assert reply.finished.usage.drafted_tokens == 0
        for count in (2, 5, 7, 8, 9):
            reply = await ask(system.coordinator.address, request(PROMPTS[0], count))
            assert len(reply.token_ids) == count
            assert reply.finished.usage.verified_tokens <= reply.finished.usage.drafted_tokens


async def test_no_draft_before_the_last_chunk() -> None:
    # D8: a prompt of 40 in chunks of 16 is drafted once it is decided, not before.
    async with stack(golden_target(DRAFT), DRAFT) as system:
        reply = await ask(system.coordinator.address, request(PROMPTS[1], 2))
        assert reply.finished.ledger.num_draft_rounds <= 1
        assert len(reply.token_ids) == 2
