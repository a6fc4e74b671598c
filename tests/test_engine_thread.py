"""The engine's thread between commands and steps, and what its failure means to who waits."""

from __future__ import annotations

import asyncio
import threading
from typing import cast

import torch

from coordinator.answer import Answer
from deploy.in_process import in_process
from protos import coordinator_pb2
from protos.errors import Unavailable
from target_service import commands as c
from target_service.engine import Engine
from target_service.engine_thread import EngineThread
from tests.fakes import table_built

HOLD = c.Hold(c.Address(c.RequestKey("flooder", "r"), 1, 0))
# A flood in which the engine makes no step at all would end here.
MOST_COMMANDS = 1000


class FloodedEngine:
    """Has work, and is sent a command whenever it has taken one."""

    def __init__(self) -> None:
        self.thread: EngineThread | None = None
        self.num_commands = 0
        self.num_steps = 0
        self.commands_before_first_step = 0
        self.over = threading.Event()

    def has_work(self) -> bool:
        return True

    def apply(self, command: c.Command) -> list[c.Event]:
        assert self.thread is not None
        self.num_commands += 1
        if self.num_commands < MOST_COMMANDS:
            self.thread.post(command)
        return []

    def step(self) -> list[c.Event]:
        self.commands_before_first_step = self.commands_before_first_step or self.num_commands
        self.num_steps += 1
        if self.num_steps == 3:
            self.over.set()
        return []


def test_a_flood_of_commands_keeps_nobody_from_a_step() -> None:
    engine = FloodedEngine()
    failures: list[BaseException] = []
    thread = EngineThread(cast(Engine, engine), lambda _name, _events: None, 1, failures.append)
    engine.thread = thread
    thread.post(HOLD)
    thread.start()
    assert engine.over.wait(30)
    thread.stop()
    assert not failures
    assert engine.commands_before_first_step == 1


async def test_when_the_engine_fails_who_waits_is_told() -> None:
    built = table_built(torch.eye(8).roll(1, dims=1) * 5.0)

    def failing() -> list[c.Event]:
        raise RuntimeError("out of memory")

    async with in_process(built, None) as system:
        built.engine.step = failing  # type: ignore[method-assign]
        message = coordinator_pb2.GenerateRequest(token_ids=[1, 2], max_tokens=5, temperature=0.0)
        generation = await system.coordinator.admit(message)
        answer, told = Answer(), False
        async with asyncio.timeout(10):
            try:
                async for response in generation.attach().messages():
                    answer.add(response)
            except Unavailable:
                told = True
        assert told
        assert isinstance(system.target.failure, RuntimeError)
        assert system.coordinator.num_running == 0
