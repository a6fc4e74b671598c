"""Replicas of a cluster, and who makes, ends and tells of them. Knows nothing of Ray."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from deploy.cluster.host import HostStatus
from deploy.cluster.plan import Actor
from protos import coordinator_pb2 as pb


class Fleet(Protocol):
    """Makes and ends actors."""

    async def create(self, actor: Actor) -> None:
        """Asks for an actor; it registers itself when its service serves."""

    async def found(self) -> list[tuple[Actor, HostStatus]]:
        """Actors of this cluster that exist, with what they know."""

    async def status(self, name: str) -> HostStatus:
        """What an actor knows now; "starting" while it has no process yet."""

    async def remember(self, text: str) -> None:
        """Keeps a text beyond the life of this process."""

    async def remembered(self) -> str | None:
        """The last of them."""

    async def end(self, name: str) -> None:
        """Stops the service gracefully and ends the actor for good."""


class Operator(Protocol):
    """Speaks to a coordinator as its operator."""

    async def set_replicas(self, address: str, targets: Sequence[str], drafts: Sequence[str]) -> None: ...

    async def list_replicas(self, address: str) -> pb.ListReplicasResponse: ...


@dataclass(eq=False)
class Member:
    """An actor of the cluster.

    Args:
        is_leaving: gets no new work, and ends.
        is_used: coordinators are told of it.
        told: the addresses that a coordinator has confirmed.
    """

    actor: Actor
    status: HostStatus = field(default_factory=HostStatus)
    is_leaving: bool = False
    is_used: bool = True
    told: tuple[tuple[str, ...], tuple[str, ...]] | None = None


@dataclass(frozen=True)
class Changes:
    """Names of what `apply` made, ended, left, and of what runs another command than the file says."""

    created: list[str]
    ended: list[str]
    kept: list[str]
    differing: list[str]
