"""From a description to what runs: actors, their resources, their command lines. Pure.

Every actor runs the entry point that bare metal runs, so a plan can be read, and tried by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from deploy.cluster.spec import ClusterSpec, Part
from protos.errors import InvalidRequest

# Stands for the address of the node that an actor is placed on, and for endpoints that are known then.
NODE = "{node}"
TARGETS = "{targets}"
DRAFTS = "{drafts}"

Kind = Literal["target", "draft", "coordinator"]
KINDS: tuple[Kind, ...] = ("target", "draft", "coordinator")


@dataclass(frozen=True)
class Actor:
    """One replica.

    Args:
        name: of the detached actor.
        bundle: its place in the placement group; None for replicas that came after the group was made.
        resources: of the bundle.
        command: verb and flags of `dlite`; placeholders as above.
    """

    name: str
    bundle: int | None
    resources: dict[str, float]
    command: tuple[str, ...]

    @property
    def kind(self) -> Kind:
        """The verb."""
        return KINDS[KINDS.index(self.command[0])]

    @property
    def does(self) -> tuple[str, ...]:
        """Its command but for the address: actors that do the same can stand for one another."""
        at = self.command.index("--address")
        return (*self.command[:at], *self.command[at + 2 :])


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

    def of(self, kind: Kind) -> list[Actor]:
        """The replicas of one service."""
        return [actor for actor in self.actors if actor.kind == kind]


def plan(spec: ClusterSpec) -> ClusterPlan:
    """What a cluster is made of: targets and drafters first, coordinators last."""
    actors: list[Actor] = []
    for kind in KINDS:
        part = part_of(spec, kind)
        for index in range(part.replicas if part is not None else 0):
            actors.append(replica(spec, kind, index, len(actors)))
    return ClusterPlan(spec.name, spec.placement, tuple(actors))


def part_of(spec: ClusterSpec, kind: Kind) -> Part | None:
    """What the description says of a service."""
    parts: dict[Kind, Part | None] = {
        "target": spec.target,
        "draft": spec.draft,
        "coordinator": spec.coordinator,
    }
    return parts[kind]


def replica(spec: ClusterSpec, kind: Kind, index: int, bundle: int | None = None) -> Actor:
    """One replica of a service, also beyond those that the description counts.

    Raises:
        InvalidRequest: the description has no such service.
    """
    part = part_of(spec, kind)
    if part is None:
        raise InvalidRequest(f"the cluster {spec.name} has no {kind} in its file", field=kind)
    port = part.port + index if part.port and not part.same_port else part.port
    command = (kind, *_serves(spec, kind, part), "--address", f"{NODE}:{port}", *part.flags)
    return Actor(name_of(spec.name, kind, index), bundle, _resources(part), command)


def name_of(cluster: str, kind: Kind, index: int) -> str:
    """The name of a replica's actor."""
    return f"{cluster}-{kind}-{index}"


def _serves(spec: ClusterSpec, kind: Kind, part: Part) -> tuple[str, ...]:
    if kind == "coordinator":
        drafts = ("--draft-address", DRAFTS) if spec.draft is not None else ()
        return ("--target-address", TARGETS, *drafts, "--admin-address", f"{NODE}:0")
    threads = ("--threads", str(max(int(part.cpus), 1)))
    drafter = ("--drafter", spec.draft.model) if kind == "draft" and spec.draft is not None else ()
    models = (*drafter, "--target", spec.target.model)
    device = ("--device", "cuda") if part.gpus else ()
    return (*models, *threads, *device)


def _resources(part: Part) -> dict[str, float]:
    resources = {**part.resources, "CPU": part.cpus}
    if part.gpus:
        resources["GPU"] = part.gpus
    if part.memory_bytes:
        resources["memory"] = float(part.memory_bytes)
    return resources


def command_line(
    command: Sequence[str], node: str, targets: Sequence[str], drafts: Sequence[str]
) -> tuple[str, ...]:
    """Verb and flags with the addresses put in; a flag whose list is empty is left out."""
    known = {TARGETS: ",".join(targets), DRAFTS: ",".join(drafts)}
    words: list[str] = []
    for word in command:
        if word in known and not known[word]:
            words.pop()  # the flag that it belongs to
        else:
            words.append(known.get(word, word.replace(NODE, node)))
    return tuple(words)
