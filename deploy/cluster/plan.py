"""From a description to what runs: actors, their resources, their command lines. Pure.

Every actor runs the entry point that bare metal runs, so a plan can be read, and tried by hand.
"""

from __future__ import annotations

from dataclasses import dataclass

from deploy.cluster.spec import ClusterSpec, Part

# Stands for the address of the node that an actor is placed on, and for endpoints that are known then.
NODE = "{node}"
TARGETS = "{targets}"
DRAFTS = "{drafts}"


@dataclass(frozen=True)
class Actor:
    """One replica.

    Args:
        name: of the detached actor; the same plan gives the same names, so `up` twice is `up` once.
        bundle: its place in the placement group.
        resources: of the bundle.
        command: verb and flags of `dlite`; placeholders as above.
    """

    name: str
    bundle: int
    resources: dict[str, float]
    command: tuple[str, ...]


@dataclass(frozen=True)
class ClusterPlan:
    """All actors, in the order in which they start."""

    name: str
    placement: str
    actors: tuple[Actor, ...]

    def totals(self) -> dict[str, float]:
        """Resources of all actors together."""
        totals: dict[str, float] = {}
        for actor in self.actors:
            for name, amount in actor.resources.items():
                totals[name] = totals.get(name, 0.0) + amount
        return totals


def plan(spec: ClusterSpec) -> ClusterPlan:
    """What a cluster is made of: targets and drafters first, coordinators last."""
    actors: list[Actor] = []
    tail: tuple[str, ...] = ("--target-address", TARGETS)
    target = ("--target", spec.target.model)
    _add(actors, spec, "target", spec.target, target)
    if spec.draft is not None:
        _add(actors, spec, "draft", spec.draft, ("--drafter", spec.draft.model, *target))
        tail += ("--draft-address", DRAFTS)
    _add(actors, spec, "coordinator", spec.coordinator, tail)
    return ClusterPlan(spec.name, spec.placement, tuple(actors))


def _add(actors: list[Actor], spec: ClusterSpec, verb: str, part: Part, models: tuple[str, ...]) -> None:
    threads = () if verb == "coordinator" else ("--threads", str(max(int(part.cpus), 1)))
    for index in range(part.replicas):
        port = part.port + index if part.port else 0
        address = ("--address", f"{NODE}:{port}")
        actors.append(
            Actor(
                name=f"{spec.name}-{verb}-{index}",
                bundle=len(actors),
                resources=_resources(part),
                command=(verb, *models, *threads, *address, *part.flags),
            )
        )


def _resources(part: Part) -> dict[str, float]:
    resources = {"CPU": part.cpus}
    if part.gpus:
        resources["GPU"] = part.gpus
    if part.memory_bytes:
        resources["memory"] = float(part.memory_bytes)
    return resources
