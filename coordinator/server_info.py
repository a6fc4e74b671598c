"""What a coordinator tells of itself: version, services, defaults, warnings."""

from __future__ import annotations

from importlib import metadata

from coordinator.pairing import pairing_warnings
from coordinator.planning import PlanDefaults
from coordinator.services import Backends
from coordinator.slots import Slots
from protos import common_pb2, coordinator_pb2, rpc


def server_info(
    coordinator_id: str, backends: Backends, defaults: PlanDefaults, slots: Slots
) -> coordinator_pb2.GetServerInfoResponse:
    """The answer to GetServerInfo."""
    target, drafter = backends.targets.describe, backends.drafter
    response = coordinator_pb2.GetServerInfoResponse(
        version=metadata.version("dlite"),
        coordinator_id=coordinator_id,
        protocol=common_pb2.Protocol(major=rpc.PROTOCOL_MAJOR, minor=rpc.PROTOCOL_MINOR),
        target=target,
        num_running=slots.num_used,
        num_waiting=slots.num_waiting,
        default_num_draft_tokens=defaults.num_draft_tokens,
        default_verify_block_size=defaults.verify_block_size,
    )
    if drafter is None:
        return response
    response.drafter_connected = drafter.is_available
    if drafter.describe is not None:
        response.drafter.CopyFrom(drafter.describe)
        response.warnings.extend(pairing_warnings(target, drafter.describe))
    if drafter.refusal:
        response.warnings.append(drafter.refusal)
    return response
