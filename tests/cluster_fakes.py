"""A fleet of actors and coordinators that are no processes: what a controller asks of them is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from deploy.cluster.controller import Controller
from deploy.cluster.host import HostStatus
from deploy.cluster.members import Replica
from deploy.cluster.plan import Actor
from deploy.cluster.spec import ClusterSpec
from protos.errors import Unavailable


def spec(targets: int = 1, drafts: int = 2, coordinators: int = 1, **draft: object) -> ClusterSpec:
    return ClusterSpec.model_validate(
        {
            "name": "agents",
            "target": {"model": "/models/m", "replicas": targets},
            "draft": {"model": "/models/d", "replicas": drafts, **draft},
            "coordinator": {"replicas": coordinators},
        }
    )


@dataclass(eq=False)
class FakeCoordinator:
    """Connects what is new at once; what is missing drains until `finish`.

    Args:
        loads: outstanding work by address.
    """

    told: list[tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=list)
    known: dict[str, str] = field(default_factory=dict)
    loads: dict[str, int] = field(default_factory=dict)
    answers: bool = True

    def set(self, targets: Sequence[str], drafts: Sequence[str]) -> None:
        self.told.append((tuple(targets), tuple(drafts)))
        for address in self.known:
            if address not in (*targets, *drafts):
                self.known[address] = "draining"
        self.known.update(dict.fromkeys((*targets, *drafts), "serving"))

    def finish(self) -> None:
        """What drains has done its work."""
        self.known = {address: state for address, state in self.known.items() if state != "draining"}


@dataclass(eq=False)
class FakeWorld:
    """The `Fleet` and the `Operator` of a controller."""

    statuses: dict[str, HostStatus] = field(default_factory=dict)
    actors: dict[str, Actor] = field(default_factory=dict)
    coordinators: dict[str, FakeCoordinator] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    text: str | None = None
    num_ports: int = 1000

    async def create(self, actor: Actor) -> None:
        assert actor.name not in self.actors, f"{actor.name} is there already"
        self.actors[actor.name] = actor
        self.statuses[actor.name] = HostStatus()

    async def found(self) -> list[tuple[Actor, HostStatus]]:
        return [(actor, self.statuses[name]) for name, actor in self.actors.items()]

    async def status(self, name: str) -> HostStatus:
        return self.statuses[name]

    async def remember(self, text: str) -> None:
        self.text = text

    async def remembered(self) -> str | None:
        return self.text

    async def end(self, name: str) -> None:
        self.ended.append(name)
        del self.actors[name]

    async def set_replicas(self, address: str, targets: Sequence[str], drafts: Sequence[str]) -> None:
        found = self.coordinators[address]
        if not found.answers:
            raise Unavailable("no answer")
        found.set(targets, drafts)

    async def replicas(self, address: str) -> list[Replica]:
        found = self.coordinators[address]
        if not found.answers:
            raise Unavailable("no answer")
        return [Replica(each, state, found.loads.get(each, 0)) for each, state in found.known.items()]

    def serve(self, controller: Controller, *names: str) -> None:
        """These actors' services serve, on new ports, and register."""
        for name in names:
            self.num_ports += 1
            status = replace(HostStatus("serving"), address=f"node:{self.num_ports}")
            self.statuses[name] = status
            if self.actors[name].kind == "coordinator":
                self.coordinators[status.address] = FakeCoordinator()
            controller.register(self.actors[name], status)


async def serving(
    description: ClusterSpec, world: FakeWorld
) -> tuple[Controller, asyncio.Task[None], FakeCoordinator]:
    """A controller whose members all serve, its running task, and its first coordinator."""
    controller = Controller(description, world, world)
    await controller.apply(description)
    world.serve(controller, *world.actors)
    await controller.announce()
    task = asyncio.create_task(controller.run())
    return controller, task, next(iter(world.coordinators.values()))
