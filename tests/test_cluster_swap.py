"""Other drafter weights in a cluster: compared under load, and back when they accept less (CLUSTER, Ray)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coordinator.swap_job import SwapOptions
from deploy.cluster import controller as controller_module
from deploy.cluster import registry
from deploy.cluster.controller import Controller
from deploy.cluster.swapping import swap_drafters
from protos.errors import Busy, DliteError, InvalidRequest, TimedOut
from tests.cluster_fakes import FakeCoordinator, FakeWorld, serving, spec

NEW = spec(coordinators=2, model="/models/new")
OPTIONS = SwapOptions(num_rounds=2000, watch_seconds=20, connect_seconds=5, look_seconds=0.005)
NEW_NAMES = ("agents-draft-2", "agents-draft-3")
OLD_NAMES = ("agents-draft-0", "agents-draft-1")


class Swapped:
    """A cluster with two coordinators, whose drafters are swapped while something else happens."""

    def __init__(self, acceptance: float, *, starts: bool = True) -> None:
        self.world = FakeWorld(acceptance={"/models/d": 0.6, "/models/new": acceptance})
        self.starts = starts
        self.result: dict[str, Any] = {}
        self.refused: DliteError | None = None
        self.controller: Controller

    async def run(self, monkeypatch: pytest.MonkeyPatch, start_seconds: float = 10) -> None:
        monkeypatch.setattr(registry, "TICK_SECONDS", 0.005)
        monkeypatch.setattr(controller_module, "POLL_SECONDS", 0.005)
        self.controller, task, _ = await serving(spec(coordinators=2), self.world)
        coordinators = list(self.world.coordinators.values())
        aside = asyncio.create_task(self._aside(coordinators))
        try:
            self.result = await swap_drafters(self.controller, NEW, OPTIONS, lambda _: None, start_seconds)
        finally:
            aside.cancel()
            task.cancel()
            await asyncio.wait({task, aside})

    async def _aside(self, coordinators: list[FakeCoordinator]) -> None:
        """Starts what is asked for, lets what drains finish, and tries to scale meanwhile."""
        while True:
            await asyncio.sleep(0.002)
            for name in NEW_NAMES:
                if self.starts and name in self.world.actors and not self.world.statuses[name].address:
                    self.world.serve(self.controller, name)
                    await self._scale()
            for each in coordinators:
                each.finish()

    async def _scale(self) -> None:
        try:
            await self.controller.scale("draft", 5)
        except DliteError as error:
            self.refused = error

    def used(self) -> list[set[str]]:
        """Models of the drafters that each coordinator was told of last."""
        return [
            {self.world.models[address] for _, drafts in each.told[-1:] for address in drafts}
            for each in self.world.coordinators.values()
        ]


async def test_better_drafters_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    swapped = Swapped(0.7)
    await swapped.run(monkeypatch)
    assert swapped.result["is_kept"], swapped.result["reason"]
    assert sorted(swapped.world.ended) == list(OLD_NAMES)
    assert swapped.used() == [{"/models/new"}] * 2
    assert len(swapped.result["old"]) == len(swapped.result["new"]) == 2  # each once, however many see it
    assert (await swapped.controller.apply(NEW)).created == []
    assert isinstance(swapped.refused, Busy)
    again = Controller(spec(coordinators=2), swapped.world, swapped.world)
    await again.recover()
    assert again.spec.draft == NEW.draft


async def test_worse_drafters_go(monkeypatch: pytest.MonkeyPatch) -> None:
    swapped = Swapped(0.3)
    await swapped.run(monkeypatch)
    assert not swapped.result["is_kept"]
    assert swapped.result["accept_length_after"] < swapped.result["accept_length_before"]
    assert sorted(swapped.world.ended) == list(NEW_NAMES)
    assert swapped.used() == [{"/models/d"}] * 2
    assert (await swapped.controller.apply(spec(coordinators=2))).created == []


async def test_drafters_that_do_not_start_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    swapped = Swapped(0.7, starts=False)
    with pytest.raises(TimedOut, match="agents-draft-2"):
        await swapped.run(monkeypatch, start_seconds=0.05)
    assert sorted(swapped.world.ended) == list(NEW_NAMES)
    assert all(len(each.told) == 1 for each in swapped.world.coordinators.values())


async def test_what_runs_already_is_not_swapped() -> None:
    world = FakeWorld()
    controller = Controller(spec(), world, world)
    await controller.apply(spec())
    with pytest.raises(InvalidRequest, match="already"):
        await swap_drafters(controller, spec(), OPTIONS, lambda _: None)
