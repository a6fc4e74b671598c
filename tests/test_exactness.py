"""Text with speculation is the text without it: engine, drafter and session in one process.

Tiny random targets in float64, where rounding (2e-15) excuses nothing. The replay drafter with
acceptance 1 up to j and 0 after it is wrong at every possible place (pitfalls A1, A11, F11).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest
import torch

from coordinator.coordinator import SOURCES
from deploy.in_process import InProcess, in_process
from draft_service.replay import ReplayDrafter, ReplayOptions
from protos import coordinator_pb2
from target_service.build import BuiltTarget, assemble
from target_service.commands import Event
from target_service.config import TargetConfig
from target_service.engine import Engine
from target_service.loader import from_model
from tests.fakes import ARCHITECTURES, GOLDEN, plain_greedy, table_built, tiny_target

BLOCK = 8
COUNT = 24
# Repeats itself, so that lookup has something to find.
PROMPT = [5, 9, 0, 17, 33, 5, 9, 0, 17, 33, 5, 9, 0, 60, 5, 9]
PROMPTS = [PROMPT, *[[(7 * i + shift) % 61 for i in range(3 + 5 * shift)] for shift in range(1, 8)]]
SEED = 1234


def built(architecture: str, tied: bool) -> BuiltTarget:
    torch.set_num_threads(1)
    model = tiny_target(architecture, tied=tied)
    config = TargetConfig.load(None, target="tiny", num_pages=128, num_tapped_layers=3, prefill_rows=16)
    return assemble(from_model(model, GOLDEN / "target_qwen3"), config)


def request(
    name: str, prompt: Sequence[int], temperature: float, v: int, source: str = "drafter"
) -> coordinator_pb2.GenerateRequest:
    """v = 0 is plain decoding."""
    speculation = coordinator_pb2.Speculation(source=SOURCES[source])
    if v == 0:
        speculation.mode = coordinator_pb2.SPECULATION_MODE_OFF
    else:
        speculation.num_draft_tokens = max(v - 1, 1)
        speculation.verify_block_size = v
    return coordinator_pb2.GenerateRequest(
        request_id=name,
        token_ids=prompt,
        temperature=temperature,
        seed=SEED,
        max_tokens=COUNT,
        speculation=speculation,
    )


async def generate(
    system: InProcess, message: coordinator_pb2.GenerateRequest
) -> tuple[list[int], coordinator_pb2.Finished]:
    """Ids and the end of one request."""
    generation = await system.coordinator.admit(message)
    ids: list[int] = []
    finished = coordinator_pb2.Finished()
    async for response in generation.attach().messages():
        if response.HasField("delta"):
            assert response.delta.first_token_index == len(ids)
            ids += response.delta.token_ids
        elif response.HasField("finished"):
            finished = response.finished
    assert finished.usage.completion_tokens == len(ids)
    return ids, finished


async def plain_texts(target: BuiltTarget, temperature: float) -> list[list[int]]:
    """Plain decoding of every prompt; greedy is compared with `generate` by the caller."""
    async with in_process(target, None) as system:
        return [
            (await generate(system, request(f"plain{i}", prompt, temperature, 0)))[0]
            for i, prompt in enumerate(PROMPTS)
        ]


def scripted(texts: dict[str, Sequence[int]], j: int) -> ReplayDrafter:
    """The first j of BLOCK - 1 proposals are the target's own tokens, the rest are wrong."""
    acceptance = tuple(1.0 if i < j else 0.0 for i in range(BLOCK - 1))
    return ReplayDrafter(texts, ReplayOptions(acceptance, vocab_size=61))


async def cross(
    architecture: str, tied: bool, cases: Sequence[tuple[int, int]], concurrency: int
) -> list[str]:
    """Runs (v, j) cases at both temperatures; returns what differs."""
    target = built(architecture, tied)
    engine = target.engine
    wrong: list[str] = []
    for temperature in (0.0, 1.0):
        references = await plain_texts(target, temperature)
        if temperature == 0.0:
            model = tiny_target(architecture, tied=tied)
            expected = [plain_greedy(model, prompt, COUNT) for prompt in PROMPTS[:concurrency]]
            assert references[:concurrency] == expected, "plain decoding differs from generate"
        for v, j in cases:
            names = [f"{temperature}-{v}-{j}-{i}" for i in range(concurrency)]
            texts = {n: [*PROMPTS[i], *references[i]] for i, n in enumerate(names)}
            async with in_process(target, scripted(texts, j)) as system:
                results = await asyncio.gather(
                    *[generate(system, request(n, PROMPTS[i], temperature, v)) for i, n in enumerate(names)]
                )
            for i, (ids, finished) in enumerate(results):
                if ids != references[i]:
                    wrong.append(f"v={v} j={j} T={temperature} request {i}: {ids} != {references[i]}")
                wrong += _counts(finished, v, j)
            engine.requests.check_integrity()
            assert engine.pool.num_available == engine.pool.num_pages
    return wrong


def _counts(finished: coordinator_pb2.Finished, v: int, j: int) -> list[str]:
    """A round of a scripted drafter accepts min(j, v - 1), except where the text ends."""
    if v == 1:
        return [] if finished.ledger.num_draft_rounds == 0 else ["v = 1 asked the drafter"]
    full = min(j, v - 1) + 1
    lengths = list(finished.ledger.accept_lengths)
    if any(length != full for length in lengths[:-1]):
        return [f"v={v} j={j}: accept lengths {lengths}, expected {full}"]
    return []


async def test_full_cross_of_block_sizes_and_acceptance() -> None:
    cases = list(itertools.product(range(1, BLOCK + 1), range(BLOCK)))
    assert await cross("llama", False, cases, concurrency=1) == []


SOME = list(itertools.product((1, 4, 8), (0, 2, BLOCK - 1)))


@pytest.mark.parametrize("concurrency", [1, 8])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
async def test_every_architecture(architecture: str, tied: bool, concurrency: int) -> None:
    assert await cross(architecture, tied, SOME, concurrency) == []


class PatientEngine:
    """An engine that decides no token of a Run before its coordinator has dealt with the last one.

    A tiny target is through with its Run before a Hold arrives; then lookup has nothing to do.
    """

    # Callbacks that follow one another between an event's arrival and the command it leads to.
    MOST_TURNS = 20

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop
        self._has_stepped = False

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    def step(self) -> list[Event]:
        self._has_stepped = True
        return self._engine.step()

    def has_work(self) -> bool:
        """Called by the engine's thread after the events of a step have left."""
        if self._has_stepped:
            self._has_stepped = False
            asyncio.run_coroutine_threadsafe(self._turns(), self._loop).result()
        return self._engine.has_work()

    async def _turns(self) -> None:
        for _ in range(self.MOST_TURNS):
            await asyncio.sleep(0)


def patient(target: BuiltTarget) -> BuiltTarget:
    engine = PatientEngine(target.engine, asyncio.get_running_loop())
    return replace(target, engine=cast(Engine, engine))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("tied", [False, True])
async def test_lookup(architecture: str, tied: bool, temperature: float) -> None:
    target = built(architecture, tied)
    references = await plain_texts(target, temperature)
    async with in_process(patient(target), None) as system:
        for v in (1, 4, 8):
            messages = [
                request(f"{v}-{i}", prompt, temperature, v, "lookup") for i, prompt in enumerate(PROMPTS)
            ]
            results = await asyncio.gather(*[generate(system, message) for message in messages])
            assert [ids for ids, _ in results] == references
            num_lookups = sum(finished.ledger.num_lookup_rounds for _, finished in results)
            assert (num_lookups > 0) is (v > 1), f"{num_lookups} rounds by lookup at v = {v}"


async def test_lookup_copies_a_cycle() -> None:
    # A target that repeats itself every 5 tokens: once seen, every block of 8 is accepted whole.
    cycle = torch.zeros(61, 61)
    for token in range(61):
        cycle[token, (token + 1) % 5] = 5.0
    async with in_process(table_built(cycle, num_pages=64), None) as system:
        message = request("cycle", [0, 1, 2, 3, 4, 0], 0.0, 8, "lookup")
        message.max_tokens = 100
        ids, finished = await generate(system, message)
    assert ids == [(1 + i) % 5 for i in range(100)]
    assert finished.ledger.num_lookup_rounds >= 12
    assert finished.ledger.accept_length > 7
    assert finished.ledger.num_draft_rounds == finished.ledger.num_lookup_rounds
    assert finished.ledger.feature_bytes == 0


def check_greedy_with_an_oracle() -> None:
    """For wrong builds: an oracle's text and counts at v = 8 and v = 3, greedy and coupled."""
    wrong = asyncio.run(cross("llama", False, [(8, 7), (3, 7), (8, 2)], concurrency=1))
    assert wrong == []


def test_oracle() -> None:
    check_greedy_with_an_oracle()
