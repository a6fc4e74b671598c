"""The tuned default changes no token: k, v, source and cohorts chosen by the real tuner in every round,
at concurrency 1 and 8, with cancels and SetSpeculation in mid-run (tiny targets in float64)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from coordinator.coordinator import SOURCES
from coordinator.trace.record import RoundRecord, RoundSource
from deploy.in_process import InProcess, in_process
from protos import coordinator_pb2
from protos.coordinator_pb2 import SPECULATION_MODE_OFF, Speculation
from tests.fakes import ARCHITECTURES
from tests.test_exactness import PROMPTS, built, generate, plain_texts, request, scripted

K = 7
TUNED = Speculation()


class Records:
    """Takes what the feed tells."""

    def __init__(self) -> None:
        self.all: list[RoundRecord] = []

    def put(self, record: RoundRecord) -> None:
        self.all.append(record)

    def of(self, source: RoundSource) -> list[RoundRecord]:
        return [record for record in self.all if record.source is source]


def tuned(name: str, prompt: int, temperature: float, source: str) -> coordinator_pb2.GenerateRequest:
    message = request(name, PROMPTS[prompt], temperature, 2, source)
    message.speculation.CopyFrom(Speculation(source=SOURCES[source]))
    return message


@pytest.mark.parametrize("concurrency", [1, 8])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
async def test_ids_are_those_of_plain_decoding(architecture: str, concurrency: int) -> None:
    target = built(architecture, tied=False)
    sources: set[RoundSource] = set()
    for temperature in (0.0, 1.0):
        references = await plain_texts(target, temperature)
        for j, source in ((0, "drafter"), (2, "auto"), (K, "drafter"), (K, "lookup_then_drafter")):
            names = [f"{temperature}-{j}-{source}-{i}" for i in range(concurrency)]
            texts: dict[str, Sequence[int]] = {n: [*PROMPTS[i], *references[i]] for i, n in enumerate(names)}
            async with in_process(target, scripted(texts, j)) as system:
                records = Records()
                with system.coordinator.feed.listening(records):
                    found = await asyncio.gather(
                        *[generate(system, tuned(n, i, temperature, source)) for i, n in enumerate(names)]
                    )
            assert [ids for ids, _ in found] == references[:concurrency]
            sources |= {record.source for record in records.all}
            assert all(record.plan.num_cohorts >= 1 for record in records.all)
    assert RoundSource.DRAFTER in sources
    target.engine.requests.check_integrity()
    assert target.engine.pool.num_available == target.engine.pool.num_pages


async def _cancelled(
    system: InProcess, message: coordinator_pb2.GenerateRequest, after: int
) -> list[int] | None:
    """Reads so many messages, then goes."""
    generation = await system.coordinator.admit(message)
    outlet = generation.attach()
    async for _ in outlet.messages():
        after -= 1
        if after < 0:
            break
    generation.detach(outlet)
    return None


async def _switched(system: InProcess, message: coordinator_pb2.GenerateRequest) -> list[int] | None:
    """Is tuned, off, fixed and tuned again by turns, with every message."""
    turns = [Speculation(mode=SPECULATION_MODE_OFF), Speculation(verify_block_size=3), TUNED]
    generation = await system.coordinator.admit(message)
    ids: list[int] = []
    async for response in generation.attach().messages():
        ids += response.delta.token_ids
        speculation = turns[len(ids) % len(turns)]
        change = coordinator_pb2.SetSpeculationRequest(request_id=message.request_id, speculation=speculation)
        system.coordinator.set_speculation(change)
    return ids


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_cancels_and_switches_disturb_nobody(
    temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The text is never far ahead of its reader, so that cancels and switches come in mid-run.
    monkeypatch.setenv("DLITE_COORDINATOR_MAX_QUEUED_DELTAS", "2")
    target = built("llama", tied=False)
    references = await plain_texts(target, temperature)
    kinds = ["tuned", "cancelled", "switched"]
    names = [f"{kinds[i % 3]}-{turn}-{i}" for turn in range(3) for i in range(8)]
    texts: dict[str, Sequence[int]] = {
        name: [*PROMPTS[i % 8], *references[i % 8]] for i, name in enumerate(names)
    }
    async with in_process(target, scripted(texts, 3)) as system:
        for turn in range(3):
            tasks: list[asyncio.Task[list[int] | None]] = []
            for i in range(8):
                name = names[8 * turn + i]
                message = tuned(name, i, temperature, "auto")
                if name.startswith("cancelled"):
                    tasks.append(asyncio.create_task(_cancelled(system, message, 1 + turn + i)))
                elif name.startswith("switched"):
                    tasks.append(asyncio.create_task(_switched(system, message)))
                else:
                    tasks.append(asyncio.create_task(_ids(system, message)))
            found = await asyncio.gather(*tasks)
            assert all(ids is None or ids == references[i] for i, ids in enumerate(found))
        assert system.coordinator.cohorts.num_members == 0
    target.engine.requests.check_integrity()
    assert target.engine.pool.num_available == target.engine.pool.num_pages


async def _ids(system: InProcess, message: coordinator_pb2.GenerateRequest) -> list[int] | None:
    return (await generate(system, message))[0]
