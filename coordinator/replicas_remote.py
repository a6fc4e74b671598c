"""Asks a coordinator for its replicas, and changes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from coordinator.trace.remote import call
from protos import coordinator_pb2 as pb
from protos import rpc
from protos.security import Address


async def list_replicas(address: Address) -> pb.ListReplicasResponse:
    """One question.

    Raises:
        DliteError: there is no such coordinator, or the caller is no operator.
    """
    channel = rpc.open_channel(address)
    try:
        return await call(channel, "ListReplicas", pb.ListReplicasRequest(), pb.ListReplicasResponse)
    finally:
        await channel.close()


async def set_replicas(
    address: Address, targets: Sequence[str], drafters: Sequence[str] | None
) -> Sequence[pb.Replica]:
    """Says which replicas there shall be.

    Args:
        targets: none leaves them as they are.
        drafters: None leaves them as they are.

    Raises:
        DliteError: there is no such coordinator, or the caller is no operator.
    """
    request = pb.SetReplicasRequest(
        target_addresses=targets, draft_addresses=drafters or (), keep_drafters=drafters is None
    )
    channel = rpc.open_channel(address)
    try:
        return (await call(channel, "SetReplicas", request, pb.SetReplicasResponse)).replicas
    finally:
        await channel.close()


class RemoteOperator:
    """The drafters of one coordinator, for `swap_job`."""

    def __init__(self, address: Address) -> None:
        self._address = address

    async def list_replicas(self) -> pb.ListReplicasResponse:
        return await list_replicas(self._address)

    async def set_drafters(self, addresses: Sequence[str]) -> None:
        await set_replicas(self._address, (), addresses)


def kind_name(kind: pb.ReplicaKind) -> str:
    """target or drafter."""
    return pb.ReplicaKind.Name(kind).removeprefix("REPLICA_KIND_").lower()


def state_name(state: pb.ReplicaState) -> str:
    """connecting, serving, refused, draining or lost."""
    return pb.ReplicaState.Name(state).removeprefix("REPLICA_STATE_").lower()


def replicas_json(replicas: Iterable[pb.Replica], drafts: Iterable[pb.DraftSums]) -> dict[str, Any]:
    """As `dlite replicas --json` prints them."""
    return {
        "replicas": [
            {
                "kind": kind_name(each.kind),
                "address": each.address,
                "state": state_name(each.state),
                "num_running": each.num_running,
                "fingerprint": each.fingerprint,
                "num_served": each.num_served,
                "num_lost": each.num_lost,
                "last_error": each.last_error,
            }
            for each in replicas
        ],
        "drafts": [
            {
                "fingerprint": each.fingerprint,
                "num_rounds": each.num_rounds,
                "num_proposed": each.num_proposed,
                "num_verified": each.num_verified,
                "num_accepted": each.num_accepted,
                "num_tokens": each.num_tokens,
            }
            for each in drafts
        ],
    }


def replica_lines(replicas: Iterable[pb.Replica]) -> list[str]:
    """As a table."""
    lines = [f"{'kind':<8} {'address':<24} {'state':<11} {'running':>7} {'served':>8} {'lost':>5}  model"]
    for each in replicas:
        state = state_name(each.state)
        lines.append(
            f"{kind_name(each.kind):<8} {each.address:<24} {state:<11} {each.num_running:>7} "
            f"{each.num_served:>8} {each.num_lost:>5}  {each.fingerprint[:12]} {each.last_error}".rstrip()
        )
    return lines
