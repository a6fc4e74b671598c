"""The `speculation` field of a request."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.bounds import require_whole
from coordinator.tuning import Plan
from protos import common_pb2, coordinator_pb2
from protos.coordinator_pb2 import (
    SPECULATION_MODE_AUTO,
    SPECULATION_MODE_MATCH,
    SPECULATION_MODE_OFF,
    SPECULATION_MODE_REJECTION,
    ProposalSource,
    SpeculationMode,
)
from protos.errors import InvalidRequest

# k without a drafter to ask for its block.
_DEFAULT_DRAFT_TOKENS = 7
# How a token is drawn above temperature 0; the other modes are coupled.
MODES = {
    SPECULATION_MODE_REJECTION: common_pb2.MODE_REJECTION,
    SPECULATION_MODE_MATCH: common_pb2.MODE_MATCH,
}


@dataclass(frozen=True)
class PlanDefaults:
    """The coordinator's k and v, and its source; with `is_tuned` they are the most that the tuner takes."""

    num_draft_tokens: int
    verify_block_size: int
    source: ProposalSource
    is_tuned: bool = False


@dataclass(frozen=True)
class PlanWishes:
    """What is configured; with both None the tuner chooses, up to the drafter's block."""

    num_draft_tokens: int | None
    verify_block_size: int | None
    source: ProposalSource


def plan_defaults(wanted: PlanWishes, drafter_block_size: int, most_rows: int) -> PlanDefaults:
    """k and v: as configured, else the drafter's block; never more rows than the target takes.

    Args:
        drafter_block_size: 0 without a drafter.
        most_rows: of one verification at the target.
    """
    k, v = wanted.num_draft_tokens, wanted.verify_block_size
    if k is None:
        k = max(drafter_block_size - 1, 0)
        k = max(k or _DEFAULT_DRAFT_TOKENS, (v or 1) - 1)
    k = min(k, most_rows - 1)
    is_tuned = wanted.num_draft_tokens is None and wanted.verify_block_size is None
    return PlanDefaults(k, min(v or k + 1, k + 1), wanted.source, is_tuned)


def require_mode(speculation: coordinator_pb2.Speculation, mode: common_pb2.Mode) -> None:
    """Raises InvalidRequest unless a running request of sampling mode `mode` may get this speculation."""
    if speculation.mode in (SPECULATION_MODE_AUTO, SPECULATION_MODE_OFF) or mode == common_pb2.MODE_GREEDY:
        return
    if MODES.get(speculation.mode, common_pb2.MODE_COUPLED) != mode:
        raise InvalidRequest(
            f"the text is drawn in {common_pb2.Mode.Name(mode)} and stays so", field="speculation.mode"
        )


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
    is_tuned = k is None and v is None and defaults.is_tuned
    if k is None and v is None:
        k, v = defaults.num_draft_tokens, defaults.verify_block_size
    return Plan(
        speculates=speculation.mode != SPECULATION_MODE_OFF,
        source=speculation.source or defaults.source,
        num_draft_tokens=k if k is not None else (v or 1) - 1,
        verify_block_size=v if v is not None else (k or 0) + 1,
        is_blind=mode == common_pb2.MODE_REJECTION,
        is_tuned=is_tuned,
    )
