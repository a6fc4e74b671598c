"""Which replicas a coordinator works with, for its operator: told, and changed while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import grpc

from coordinator.addresses import check_addresses
from protos import coordinator_pb2 as pb
from protos import rpc


class Draining(Protocol):
    """A replica that may be on its way out of its pool."""

    address: str
    drain: asyncio.Task[None] | None


_Replica = TypeVar("_Replica", bound=Draining)


def bring_about(
    addresses: Sequence[str],
    members: Mapping[str, _Replica],
    add: Callable[[str], None],
    drain: Callable[[_Replica], Coroutine[Any, Any, None]],
) -> None:
    """From now on these addresses are the members: new ones are added, one that drains and is named again
    stays, those that are missing drain. The same again changes nothing."""
    for address in dict.fromkeys(addresses):
        member = members.get(address)
        if member is None:
            add(address)
        elif member.drain is not None:
            member.drain.cancel()
            member.drain = None
    for member in tuple(members.values()):
        if member.address not in addresses and member.drain is None:
            member.drain = asyncio.create_task(drain(member), name=f"drain {member.address}")


def state_of(is_draining: bool, is_connected: bool, refusal: str, was_there: bool) -> pb.ReplicaState:
    """What a replica does, for people."""
    if is_draining:
        return pb.REPLICA_STATE_DRAINING
    if is_connected:
        return pb.REPLICA_STATE_SERVING
    if refusal:
        return pb.REPLICA_STATE_REFUSED
    return pb.REPLICA_STATE_LOST if was_there else pb.REPLICA_STATE_CONNECTING


class Pool(Protocol):
    """Replicas of one kind."""

    def set_addresses(self, addresses: Sequence[str]) -> None:
        """Connects what is new and drains what is missing; returns at once. The same list again changes
        nothing; an address that comes back while it drains serves again."""
        ...

    def replicas(self) -> list[pb.Replica]:
        """All that are there, those that drain included."""
        ...


class Membership:
    """Answers ListReplicas and SetReplicas.

    Args:
        draft_sums: rounds by the fingerprint of their drafter, since the start.
    """

    def __init__(
        self, targets: Pool, drafters: Pool, draft_sums: Callable[[], Iterable[pb.DraftSums]]
    ) -> None:
        self._targets = targets
        self._drafters = drafters
        self._draft_sums = draft_sums

    def methods(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """To be served beside those of the public API."""
        return {
            "ListReplicas": rpc.unary(pb.ListReplicasRequest, self.list_replicas),
            "SetReplicas": rpc.unary(pb.SetReplicasRequest, self.set_replicas),
        }

    async def list_replicas(
        self, message: pb.ListReplicasRequest, context: rpc.Context
    ) -> pb.ListReplicasResponse:
        return pb.ListReplicasResponse(replicas=self._all(), drafts=self._draft_sums())

    async def set_replicas(
        self, message: pb.SetReplicasRequest, context: rpc.Context
    ) -> pb.SetReplicasResponse:
        """Both lists are checked before either is used.

        Raises:
            InvalidRequest: what is no address, or is named twice.
        """
        check_addresses(message.target_addresses, "target_addresses")
        check_addresses(message.draft_addresses, "draft_addresses")
        if message.target_addresses:
            self._targets.set_addresses(message.target_addresses)
        if not message.keep_drafters:
            self._drafters.set_addresses(message.draft_addresses)
        return pb.SetReplicasResponse(replicas=self._all())

    def _all(self) -> list[pb.Replica]:
        return [*self._targets.replicas(), *self._drafters.replicas()]
