"""One frame for every fault: load runs, the fault strikes in mid-round, then everything is checked.

A fault is a coroutine that strikes and returns when the system has recovered. It says how many rounds it
met under way; one that met none has shown nothing, and fails.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from coordinator.client import AsyncClient
from deploy.bench.comparison import is_passed
from deploy.bench.fault_fleet import Fleet
from deploy.bench.fault_load import Judge, Load, Text
from deploy.bench.fault_watch import Meddling, Watch
from protos import coordinator_pb2
from protos.errors import DliteError

IDLE_SECONDS = 60.0
# Short texts that show one target's pages, or several targets': load spreads them.
PROBES = (1, 8)
# A target tells of its pages at most twice a second.
PROGRESS_SECONDS = 0.55


@dataclass(frozen=True)
class Settings:
    """How a scene is played.

    Args:
        num_workers: texts that run at a time.
        num_cancels, num_malformed: of the rows with these.
        seconds: after which a fault that has not passed is stuck.
    """

    num_workers: int = 4
    num_cancels: int = 1000
    num_malformed: int = 10_500
    seconds: float = 300.0


@dataclass(eq=False)
class Scene:
    """What a fault sees. `details` go into its record."""

    fleet: Fleet
    load: Load
    texts: Sequence[Text]
    settings: Settings
    details: dict[str, Any] = field(default_factory=dict)
    struck_at: float = 0.0

    @property
    def seconds(self) -> float:
        """Since the strike."""
        return round(asyncio.get_running_loop().time() - self.struck_at, 2)

    async def when(self, is_true: Callable[[], bool]) -> None:
        """Waits for something that shows on the wire or at a client."""
        await self.fleet.pulse.when(is_true)

    async def until_open(self, *names: str) -> int:
        """Waits until rounds are under way at each of these services; returns how many."""
        watches = self.fleet.watches(*names)
        await self.when(lambda: self.load.is_under_way and all(watch.num_open for watch in watches))
        self.struck_at = asyncio.get_running_loop().time()
        return sum(watch.num_open for watch in watches)

    async def until_served(self, *names: str) -> None:
        """Until each of these services answers a round."""
        before = {watch: watch.num_answers for watch in self.fleet.watches(*names)}
        await self.when(lambda: all(watch.num_answers > count for watch, count in before.items()))

    async def strike(self, number: signal.Signals, *names: str) -> int:
        """A signal in mid-round; returns when the processes are back and answer rounds."""
        landed = await self.until_open(*(name for name in names if not name.startswith("coordinator")))
        restarts = {name: self.fleet.members[name].num_restarts for name in names}
        self.fleet.signal(names, number)
        members = self.fleet.members
        await self.when(lambda: all(members[name].num_restarts > n for name, n in restarts.items()))
        self.details["restart_seconds"] = self.seconds
        await self.until_served(*(name for name in names if not name.startswith("coordinator")))
        return landed

    async def meddle(self, meddling: Meddling, kinds: frozenset[str], times: int) -> int:
        """Meddles with what passes until each of these kinds has been met so often."""
        await self.until_open()
        for watch in self.fleet.watches():
            watch.meddling = meddling
        try:
            await self.when(lambda: all(meddling.counts[kind] >= times for kind in kinds))
        finally:
            for watch in self.fleet.watches():
                watch.meddling = None
        self.details["messages"] = dict(sorted(meddling.counts.items()))
        return sum(meddling.counts.values())


@dataclass(frozen=True)
class Fault:
    """One row.

    Args:
        says: what is done, for people.
        strike: does it; returns the rounds that it met under way.
    """

    name: str
    says: str
    strike: Callable[[Scene], Awaitable[int]]


class Frame:
    """Plays faults, one after the other, on one fleet.

    Args:
        judge: has learned what the texts are.
        client: of the last coordinator, for what is asked between faults.
    """

    def __init__(self, fleet: Fleet, judge: Judge, client: AsyncClient, settings: Settings) -> None:
        self._fleet = fleet
        self._judge = judge
        self._client = client
        self._settings = settings

    async def play(self, fault: Fault) -> dict[str, Any]:
        """The record of one fault; `pass` says whether all is as it should be."""
        load = Load(self._fleet.coordinators, self._judge, self._settings.num_workers, self._fleet.pulse.beat)
        scene = Scene(self._fleet, load, self._judge.texts, self._settings)
        load.start()
        try:
            async with asyncio.timeout(self._settings.seconds):
                landed = await fault.strike(scene)
                recovered = scene.seconds
                await self._one_text_more(load)
                await load.finish()
        except (DliteError, TimeoutError) as error:
            return {"fault": fault.name, "pass": False, "stuck": repr(error), "failed": load.failures}
        finally:
            load.cancel()
        return await self._record(fault, scene, landed, recovered)

    async def _one_text_more(self, load: Load) -> None:
        """Every worker ends the text it is at, and has a whole one after that."""
        counts = [worker.num_done + 2 for worker in load.workers]
        await self._fleet.pulse.when(
            lambda: all(worker.num_done >= n for worker, n in zip(load.workers, counts, strict=True))
        )

    async def _record(self, fault: Fault, scene: Scene, landed: int, recovered: float) -> dict[str, Any]:
        load = scene.load
        found = [await self._judge.judge(self._client, number, ids) for number, ids in load.answers]
        surplus = await surplus_pages(self._fleet.watches(), self._client)
        mismatches = [each.mismatch for each in found if each.mismatch]
        good = bool(landed and found and is_passed(found) and not load.failures and not surplus)
        return {
            "fault": fault.name,
            "pass": good,
            "landed": landed,
            "texts": len(found),
            "tokens": sum(each.num_tokens for each in found),
            "failed": load.failures,
            "different": mismatches,
            "near_ties": [tie.gap for each in found for tie in each.near_ties],
            "surplus_pages": surplus,
            "recover_seconds": recovered,
            "longest_pause_seconds": round(load.longest_pause(scene.struck_at), 2),
            **dict(load.ledgers),
            **scene.details,
        }


async def surplus_pages(watches: Sequence[Watch], client: AsyncClient) -> int:
    """Pages that no request accounts for, at all targets; 0 when all are back.

    Asked while a few short texts are all that runs: their own pages are known.
    """
    targets = [watch for watch in watches if watch.is_target]
    requests = [
        coordinator_pb2.GenerateRequest(token_ids=[number] * 4, max_tokens=8, ignore_eos=True)
        for number in range(1, 1 + PROBES[len(targets) > 1])
    ]
    loop = asyncio.get_running_loop()
    deadline = loop.time() + IDLE_SECONDS
    while True:
        for watch in targets:
            watch.surplus_pages = None
        await asyncio.sleep(PROGRESS_SECONDS)
        await asyncio.gather(*(client.complete(request) for request in requests))
        seen = [watch.surplus_pages for watch in targets]
        if all(each == 0 for each in seen) or loop.time() > deadline:
            return sum(abs(each) for each in seen if each is not None)
