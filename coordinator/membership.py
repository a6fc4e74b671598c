"""Which replicas a coordinator works with, for its operator: told, and changed while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import grpc

from coordinator.addresses import check_addresses
from protos import coordinator_pb2 as pb
from protos import rpc


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
            InvalidRequest: an empty address, or one that is named twice.
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
