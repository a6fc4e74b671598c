"""Cancels at every stage leave the target's pages at their start value (pitfall D17).

Start value: free pages plus cached ones that nobody holds, which is the whole pool when idle.
"""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any

import pytest
import torch

from coordinator.answer import Answer
from coordinator.client import AsyncClient
from coordinator.coordinator import SOURCES
from deploy.in_process import in_process
from draft_service.replay import ReplayDrafter, ReplayOptions
from protos import coordinator_pb2
from protos.common_pb2 import FINISH_REASON_ABORT
from target_service.build import BuiltTarget, assemble
from target_service.config import TargetConfig
from target_service.loader import from_model
from tests.coordinator_harness import until
from tests.fakes import GOLDEN, tiny_target
from tests.system.stack import golden_target, stack

DRAFT = GOLDEN / "draft_trained_g1"
LONG = [(11 * i + 3) % 250 for i in range(120)]
PROMPTS = [LONG, LONG[:40], [61, 70, 22, 78, 216], [7]]
OFF = coordinator_pb2.SPECULATION_MODE_OFF


def random_request(rng: random.Random, number: int) -> coordinator_pb2.GenerateRequest:
    speculation = coordinator_pb2.Speculation(source=SOURCES[rng.choice(list(SOURCES))])
    if rng.random() < 0.25:
        speculation.mode = OFF
    return coordinator_pb2.GenerateRequest(
        request_id=f"r{number}",
        token_ids=rng.choice(PROMPTS),
        max_tokens=rng.choice((1, 30, 200)),
        temperature=rng.choice((0.0, 1.0)),
        ignore_eos=True,
        n=rng.choice((1, 1, 1, 3)),
        speculation=speculation,
    )


async def cancel_at_random(client: AsyncClient, rng: random.Random, number: int) -> bool:
    """Runs a request and leaves it, aborts it, or lets its deadline pass, after a random while.

    Returns:
        Whether that was before its end.
    """
    way, seconds = rng.choice(("leave", "abort", "deadline")), rng.uniform(0.0, 0.15)
    message = random_request(rng, number)
    if way == "deadline":
        # Too little time is as good a stage as any: the call may not even arrive.
        work = asyncio.create_task(client.complete(message, timeout_seconds=max(seconds, 0.001)))
        await asyncio.wait({work})
        return work.exception() is not None
    work = asyncio.create_task(client.complete(message))
    await asyncio.wait({work}, timeout=seconds)
    is_early = not work.done()
    if way == "abort" and not await client.abort(message.request_id):
        way = "leave"  # not there yet, or over
    if way == "leave":
        work.cancel()
    await asyncio.wait({work})
    return is_early


async def cancel_many(count: int, seed: int) -> None:
    rng = random.Random(seed)
    async with (
        stack(golden_target(DRAFT), DRAFT, max_running=6, max_waiting=64) as system,
        AsyncClient(system.coordinator.address) as client,
    ):
        engine: Any = system.target.service._built.engine
        start = engine.pool.num_available
        assert start == engine.pool.num_pages
        numbers = iter(range(count))

        async def worker() -> int:
            return sum([await cancel_at_random(client, rng, number) for number in numbers])

        num_early = sum(await asyncio.gather(*(worker() for _ in range(10))))
        assert num_early > count / 2
        info = await client.server_info()
        assert (info.num_running, info.num_waiting) == (0, 0)
        await until(lambda: len(engine.requests) == 0)
        assert engine.pool.num_available == start
        engine.requests.check_integrity()
        # The services are as good as new.
        answer = await client.complete(coordinator_pb2.GenerateRequest(token_ids=[7], max_tokens=20))
        assert len(answer.token_ids) >= 1


async def test_200_random_cancels_leave_the_pages_at_the_start_value() -> None:
    await cancel_many(200, seed=1)


@pytest.mark.prove
@pytest.mark.timeout(900)
async def test_1000_random_cancels_leave_the_pages_at_the_start_value() -> None:
    await cancel_many(1000, seed=2)


def chunked_target() -> BuiltTarget:
    """A tiny real model that takes a prompt of 40 tokens in three steps."""
    torch.set_num_threads(1)
    config = TargetConfig.load(None, target="tiny", num_pages=64, num_tapped_layers=3, prefill_rows=16)
    return assemble(from_model(tiny_target("llama"), GOLDEN / "target_qwen3"), config)


class CancelAtStep:
    """Lets a model's step number `at` wait until the request was aborted: its work is under way."""

    def __init__(self, built: BuiltTarget, at: int) -> None:
        self.abort: Any = None
        self._loop = asyncio.get_running_loop()
        self._forward = built.engine._model.forward
        self._num_steps = 0
        self._at = at
        built.engine._model.forward = self.forward  # type: ignore[method-assign]

    def forward(self, step: Any) -> Any:
        self._num_steps += 1
        if self._num_steps == self._at:
            aborted = threading.Event()

            def act() -> None:
                self.abort()
                aborted.set()

            self._loop.call_soon_threadsafe(act)
            assert aborted.wait(30)
        return self._forward(step)


@pytest.mark.parametrize("step", range(1, 8))
@pytest.mark.parametrize("mode", ["run", "verify"])
async def test_a_cancel_while_a_step_computes_frees_after_it(step: int, mode: str) -> None:
    """Steps 1 to 3 are the prompt's chunks, later ones a Run's or verifications."""
    built = chunked_target()
    cancel = CancelAtStep(built, step)
    prompt = [(7 * i) % 61 for i in range(40)]
    message = coordinator_pb2.GenerateRequest(
        request_id="r", token_ids=prompt, max_tokens=100, temperature=0.0, ignore_eos=True
    )
    drafter = None
    if mode == "run":
        message.speculation.mode = OFF
    else:
        message.speculation.source = SOURCES["drafter"]
        drafter = ReplayDrafter({"r": [*prompt, *[1] * 100]}, ReplayOptions((0.0,) * 7, vocab_size=61))
    async with in_process(built, drafter) as system:
        cancel.abort = lambda: system.coordinator.abort("r")
        generation = await system.coordinator.admit(message)
        answer = Answer()
        async for response in generation.attach().messages():
            answer.add(response)
        assert answer.finish_reason == FINISH_REASON_ABORT
        assert answer.usage.completion_tokens == len(answer.token_ids)
        await until(lambda: len(built.engine.requests) == 0)
        assert built.engine.pool.num_available == built.engine.pool.num_pages
        built.engine.requests.check_integrity()
        assert system.target.failure is None
