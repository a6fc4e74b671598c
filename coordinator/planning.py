"""The `speculation` field of a request."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.bounds import require_whole
from coordinator.tuning import Plan
from protos import common_pb2, coordinator_pb2
from protos.coordinator_pb2 import SPECULATION_MODE_OFF, ProposalSource, SpeculationMode
from protos.errors import InvalidRequest


@dataclass(frozen=True)
class PlanDefaults:
    """The coordinator's fixed k and v, and its source."""

    num_draft_tokens: int
    verify_block_size: int
    source: ProposalSource


def read_plan(
    speculation: coordinator_pb2.Speculation, mode: common_pb2.Mode, defaults: PlanDefaults, most_rows: int
) -> Plan:
    """How a request wants to be speculated.

    Args:
        mode: of its sampling parameters.
        most_rows: that the target verifies at once.

    Raises:
        InvalidRequest: naming the field.
    """
    if speculation.mode not in SpeculationMode.values():
        raise InvalidRequest(f"unknown value {speculation.mode}", field="speculation.mode")
    if speculation.source not in ProposalSource.values():
        raise InvalidRequest(f"unknown value {speculation.source}", field="speculation.source")
    k = speculation.num_draft_tokens if speculation.HasField("num_draft_tokens") else None
    v = speculation.verify_block_size if speculation.HasField("verify_block_size") else None
    if k is not None:
        require_whole("speculation.num_draft_tokens", k, 0, most_rows - 1)
    if v is not None:
        require_whole("speculation.verify_block_size", v, 1, most_rows)
    if k is not None and v is not None and v > k + 1:
        raise InvalidRequest(
            f"{v} rows need {v - 1} proposals, but num_draft_tokens is {k}",
            field="speculation.verify_block_size",
        )
    if k is None and v is None:
        k, v = defaults.num_draft_tokens, defaults.verify_block_size
    return Plan(
        speculates=speculation.mode != SPECULATION_MODE_OFF,
        source=speculation.source or defaults.source,
        num_draft_tokens=k if k is not None else (v or 1) - 1,
        verify_block_size=v if v is not None else (k or 0) + 1,
        is_blind=mode == common_pb2.MODE_REJECTION,
    )
