"""What is lost, late or double on the streams changes no text (CLUSTER, Faults), and the frame that says so.

The services are in this process; the same rows with processes are in `tests/system/test_faults.py`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coordinator.client import AsyncClient
from deploy.bench.fault_frame import Fault, Frame, Scene, Settings
from deploy.bench.fault_load import Judge, texts_of
from deploy.bench.fault_rows import PAIR
from protos import target_pb2
from tests.coordinator_fakes import TableEngine, counting
from tests.coordinator_harness import ScriptedDrafter, TablePort, complete, make_coordinator, request
from tests.fault_world import PROMPTS, fleet_here

BY_NAME = {fault.name: fault for fault in PAIR}
SETTINGS = Settings(num_workers=4, num_cancels=60)
MAX_TOKENS = 40
# A resend takes 50 ms; a machine with other work takes longer.
LIMIT_SECONDS = 10.0


async def play(*faults: Fault, **changes: Any) -> list[dict[str, Any]]:
    """Plays faults on services of this process; the records."""
    settings = {"resend_seconds": 0.15, "draft_timeout_seconds": 0.3, **changes}
    async with fleet_here(**settings) as fleet, AsyncClient(fleet.coordinators[0]) as client:
        judge = Judge(texts_of(PROMPTS, MAX_TOKENS), None)
        await judge.learn(client)
        frame: Any = Frame(fleet, judge, client, SETTINGS)  # type: ignore[arg-type]
        return [await frame.play(fault) for fault in faults]


async def passes(name: str) -> None:
    """The row passes; a wrong build that spoils it must not."""
    (record,) = await play(BY_NAME[name])
    assert record["pass"], record


@pytest.mark.parametrize("name", ["drop", "delay", "duplicate", "cut-links", "cancels"])
async def test_no_text_changes_and_no_page_is_lost(name: str) -> None:
    await passes(name)


async def nothing(scene: Scene) -> int:
    return 0


async def test_a_fault_that_met_no_round_shows_nothing() -> None:
    (record,) = await play(Fault("nothing", "nothing is done", nothing))
    assert record["landed"] == 0
    assert not record["failed"]
    assert not record["pass"]


async def test_a_lost_command_is_sent_again() -> None:
    """With a limit of its own: a coordinator that does not do so would wait for ever."""
    lost: list[target_pb2.Command] = []

    def fault(command: target_pb2.Command) -> list[target_pb2.Command]:
        if command.WhichOneof("kind") == "verify" and not lost:
            lost.append(command)
            return []
        return [command]

    engine = TableEngine(counting)
    port = TablePort(engine, on_command=fault)
    work = complete(make_coordinator(port, ScriptedDrafter(engine, 3)), request(max_tokens=25, k=5))
    done, _ = await asyncio.wait({running := asyncio.create_task(work)}, timeout=LIMIT_SECONDS)
    running.cancel()
    assert done, "nobody sent it again"
    answer, _, failure = running.result()
    assert lost
    assert failure is None
    assert answer.token_ids == list(range(25))
