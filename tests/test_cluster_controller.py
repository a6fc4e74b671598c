"""What a cluster's controller does, without Ray (CLUSTER, Ray)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from deploy.cluster import controller as controller_module
from deploy.cluster import registry
from deploy.cluster.controller import Controller
from deploy.cluster.host import HostStatus
from deploy.cluster.scaling import Autoscaler
from deploy.cluster.spec import ClusterSpec
from protos import coordinator_pb2 as pb
from protos.errors import InvalidRequest, NotFound, TimedOut
from tests.cluster_fakes import FakeCoordinator, FakeWorld, serving, spec


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "TICK_SECONDS", 0.005)
    monkeypatch.setattr(controller_module, "POLL_SECONDS", 0.005)


@contextlib.asynccontextmanager
async def cluster(
    description: ClusterSpec | None = None,
) -> AsyncIterator[tuple[Controller, FakeWorld, FakeCoordinator]]:
    world = FakeWorld()
    controller, task, coordinator = await serving(description or spec(), world)
    try:
        yield controller, world, coordinator
    finally:
        task.cancel()
        await asyncio.wait({task})


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(2500):
        if is_so():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("it does not come")


async def test_up_twice_is_up_once() -> None:
    async with cluster() as (controller, world, _):
        first = dict(world.actors)
        changes = await controller.apply(spec())
        assert (changes.created, changes.ended, changes.differing) == ([], [], [])
        assert changes.kept == sorted(first)
        assert world.actors == first


async def test_up_makes_what_is_missing_and_ends_what_is_too_much() -> None:
    async with cluster() as (controller, world, coordinator):
        changes = await controller.apply(spec(targets=2), dry_run=True)
        assert changes.created == ["agents-target-1"]
        assert "agents-target-1" not in world.actors
        coordinator.finish()
        ending = asyncio.create_task(controller.apply(spec(targets=2, drafts=1)))
        await until(lambda: coordinator.is_draining)
        coordinator.finish()
        assert (await ending).ended == ["agents-draft-1"]
        assert "agents-target-1" in world.actors


async def test_up_leaves_what_runs_another_command_and_says_so() -> None:
    async with cluster() as (controller, world, _):
        changed = spec(model="/models/better")
        changes = await controller.apply(changed)
        assert changes.differing == ["agents-draft-0", "agents-draft-1"]
        assert (changes.created, changes.ended) == ([], [])
        # More of them are like those that run, not a mixture.
        await controller.scale("draft", 3)
        assert "/models/d" in world.actors["agents-draft-2"].command


async def test_coordinators_are_told_of_every_change() -> None:
    async with cluster(spec(coordinators=2)) as (controller, world, coordinator):
        targets, drafts = controller.endpoints()
        assert coordinator.told == [(targets, drafts)]
        world.serve(controller, "agents-draft-0")  # started again, at another port
        await until(lambda: len(coordinator.told) == 2)
        for each in world.coordinators.values():
            assert each.told[-1] == controller.endpoints() != (targets, drafts)
            assert {a for a, state in each.known.items() if state == pb.REPLICA_STATE_SERVING} == {
                address for addresses in controller.endpoints() for address in addresses
            }


async def test_a_coordinator_that_starts_again_is_told_again() -> None:
    """It knows what its flags said, which may be old."""
    async with cluster() as (controller, world, _):
        world.serve(controller, "agents-coordinator-0")
        second = list(world.coordinators.values())[1]
        await until(lambda: second.told == [controller.endpoints()])


async def test_a_coordinator_that_does_not_answer_is_told_later() -> None:
    async with cluster() as (controller, world, coordinator):
        coordinator.answers = False
        world.serve(controller, "agents-draft-1")
        await asyncio.sleep(0.02)
        assert len(coordinator.told) == 1
        coordinator.answers = True
        await until(lambda: coordinator.told[-1] == controller.endpoints())


async def test_without_targets_nobody_is_told() -> None:
    """An empty list of targets would leave a coordinator with those that it has."""
    world = FakeWorld()
    controller = Controller(spec(), world, world)
    await controller.apply(spec())
    world.serve(controller, "agents-coordinator-0", "agents-draft-0")
    await controller.announce()
    assert next(iter(world.coordinators.values())).told == []


async def test_a_replica_that_leaves_ends_when_nobody_uses_it() -> None:
    async with cluster() as (controller, world, coordinator):
        address = world.statuses["agents-draft-1"].address
        leaving = asyncio.create_task(controller.scale("draft", 1))
        await until(lambda: coordinator.known[address] == pb.REPLICA_STATE_DRAINING)
        await asyncio.sleep(0.03)
        assert world.ended == []
        coordinator.finish()
        assert (await leaving).ended == world.ended == ["agents-draft-1"]
        assert address not in controller.endpoints()[1]


async def test_a_drain_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_module, "DRAIN_SECONDS", 0.05)
    async with cluster() as (controller, world, _):
        await controller.drain("agents-draft-0")
        assert world.ended == ["agents-draft-0"]


async def test_the_last_of_its_kind_stays() -> None:
    async with cluster() as (controller, world, _):
        with pytest.raises(InvalidRequest, match="last target"):
            await controller.drain("agents-target-0")
        with pytest.raises(InvalidRequest, match="at least one"):
            await controller.scale("coordinator", 0)
        with pytest.raises(NotFound, match="agents-draft-0"):
            await controller.drain("agents-draft-9")
        assert world.ended == []


async def test_places_of_the_group_are_used_again() -> None:
    async with cluster() as (controller, world, coordinator):
        place = world.actors["agents-draft-0"].bundle
        draining = asyncio.create_task(controller.drain("agents-draft-0"))
        await until(lambda: coordinator.is_draining)
        coordinator.finish()
        await draining
        await controller.scale("draft", 3)
        assert world.actors["agents-draft-0"].bundle == place
        assert world.actors["agents-draft-2"].bundle is None
        bundles = [actor.bundle for actor in world.actors.values() if actor.bundle is not None]
        assert len(set(bundles)) == len(bundles)


async def test_a_controller_that_starts_again_takes_up_what_is_there() -> None:
    async with cluster() as (controller, world, _):
        await controller.scale("draft", 3)
        world.serve(controller, "agents-draft-2")
        await controller.apply(spec(targets=2, drafts=3))
        again = Controller(spec(), world, world)
        await again.recover()
        assert sorted(again.members) == sorted(world.actors)
        assert again.endpoints() == controller.endpoints()
        assert again.spec == controller.spec
        assert (await again.apply(spec(targets=2, drafts=3))).created == []


async def test_an_actor_that_starts_again_with_the_controller_is_taken_in_when_it_serves() -> None:
    """It does not answer while the controller looks for its actors."""
    async with cluster() as (_, world, coordinator):
        silent = world.actors.pop("agents-target-0")
        again = Controller(spec(), world, world)
        await again.recover()
        world.actors[silent.name] = silent
        world.serve(again, silent.name)
        await again.announce()
        assert coordinator.told[-1] == again.endpoints()
        assert len(again.endpoints()[0]) == 1
        assert (await again.apply(spec())).created == []


async def test_waiting_says_what_is_missing() -> None:
    world = FakeWorld()
    controller = Controller(spec(), world, world)
    changes = await controller.apply(spec())
    world.serve(controller, "agents-target-0", "agents-draft-0", "agents-coordinator-0")
    world.statuses["agents-draft-1"] = replace(world.statuses["agents-draft-1"], error="no such folder")
    with pytest.raises(TimedOut, match="agents-draft-1: no such folder"):
        await controller.wait_serving(changes.created, 0.05)
    world.serve(controller, "agents-draft-1")
    await controller.wait_serving(changes.created, 5)
    assert next(iter(world.coordinators.values())).told[-1] == controller.endpoints()


async def test_a_lost_actor_keeps_its_address_until_it_has_another() -> None:
    """Coordinators hold on to it: it may be back at any moment, and they route around it meanwhile."""
    async with cluster() as (controller, world, _):
        before = controller.endpoints()
        world.statuses["agents-target-0"] = HostStatus()
        await controller.refresh()
        assert controller.members["agents-target-0"].status.state == "starting"
        assert controller.endpoints() == before


async def test_the_coordinators_end_first() -> None:
    async with cluster() as (controller, world, _):
        await controller.end_all()
        assert world.ended[0] == "agents-coordinator-0"
        assert (len(world.ended), world.actors, controller.members) == (4, {}, {})


async def test_drafters_follow_their_load() -> None:
    """Two windows of much to do, then of nothing."""
    autoscale = {"min": 1, "max": 3, "outstanding": 2, "window_seconds": 3, "interval_seconds": 1}
    async with cluster(spec(autoscale=autoscale)) as (controller, world, coordinator):
        autoscaler = Autoscaler(controller, start_seconds=10)
        coordinator.loads = dict.fromkeys(controller.endpoints()[1], 5)
        for _ in range(2):
            await autoscaler.look()
        assert len(controller.of("draft")) == 2
        more = asyncio.create_task(autoscaler.look())
        await until(lambda: "agents-draft-2" in world.actors)
        world.serve(controller, "agents-draft-2")
        await more
        coordinator.loads = {}
        for _ in range(2):
            await autoscaler.look()
        fewer = asyncio.create_task(autoscaler.look())
        await until(lambda: coordinator.is_draining)
        coordinator.finish()
        await fewer
        assert world.ended == ["agents-draft-2"]
