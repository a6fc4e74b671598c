"""A fleet of actors and coordinators that are no processes: what a controller asks of them is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from deploy.cluster.controller import Controller
from deploy.cluster.host import HostStatus
from deploy.cluster.plan import Actor
from deploy.cluster.spec import ClusterSpec
from protos import coordinator_pb2 as pb
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
    known: dict[str, pb.ReplicaState] = field(default_factory=dict)
    loads: dict[str, int] = field(default_factory=dict)
    answers: bool = True
    drafts: dict[str, pb.DraftSums] = field(default_factory=dict)

    def set(self, targets: Sequence[str], drafts: Sequence[str]) -> None:
        self.told.append((tuple(targets), tuple(drafts)))
        for address in self.known:
            if address not in (*targets, *drafts):
                self.known[address] = pb.REPLICA_STATE_DRAINING
        self.known.update(dict.fromkeys((*targets, *drafts), pb.REPLICA_STATE_SERVING))

    def replicas(self) -> list[pb.Replica]:
        return [
            pb.Replica(address=address, state=state, num_running=self.loads.get(address, 0))
            for address, state in self.known.items()
        ]

    @property
    def is_draining(self) -> bool:
        return pb.REPLICA_STATE_DRAINING in self.known.values()

    def draft(self, model: str, acceptance: float, num_rounds: int) -> None:
        """Rounds with two proposals, of a drafter whose fingerprint is its model's name."""
        sums = self.drafts.setdefault(model, pb.DraftSums(fingerprint=model))
        first, second = round(num_rounds * acceptance), round(num_rounds * acceptance**2)
        for counts, more in (
            (sums.reached_per_position, (num_rounds, first)),
            (sums.accepted_per_position, (first, second)),
        ):
            counts[:] = [have + new for have, new in zip(counts or (0, 0), more, strict=True)]
        sums.num_rounds += num_rounds
        sums.num_tokens += num_rounds + first + second

    def finish(self) -> None:
        """What drains has done its work."""
        gone = pb.REPLICA_STATE_DRAINING
        self.known = {address: state for address, state in self.known.items() if state != gone}


@dataclass(eq=False)
class FakeWorld:
    """The `Fleet` and the `Operator` of a controller."""

    statuses: dict[str, HostStatus] = field(default_factory=dict)
    actors: dict[str, Actor] = field(default_factory=dict)
    coordinators: dict[str, FakeCoordinator] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    text: str | None = None
    num_ports: int = 1000
    # Under load: acceptance by the drafter's model, and the model by address.
    acceptance: dict[str, float] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)

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

    async def list_replicas(self, address: str) -> pb.ListReplicasResponse:
        found = self.coordinators[address]
        if not found.answers:
            raise Unavailable("no answer")
        replicas = found.replicas()
        for each in replicas:
            each.fingerprint = self.models.get(each.address, "")
            if each.fingerprint in self.acceptance and each.state == pb.REPLICA_STATE_SERVING:
                each.kind = pb.REPLICA_KIND_DRAFTER
                found.draft(each.fingerprint, self.acceptance[each.fingerprint], 100)
        return pb.ListReplicasResponse(replicas=replicas, drafts=found.drafts.values())

    def serve(self, controller: Controller, *names: str) -> None:
        """These actors' services serve, on new ports, and register."""
        for name in names:
            self.num_ports += 1
            status = replace(HostStatus("serving"), address=f"node:{self.num_ports}")
            self.statuses[name] = status
            actor = self.actors[name]
            if actor.kind == "draft":
                self.models[status.address] = actor.command[actor.command.index("--drafter") + 1]
            if actor.kind == "coordinator":
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
