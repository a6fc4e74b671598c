"""What a request is given to run with: the services, the epoch counter, the limits."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from coordinator.config import CoordinatorConfig
from coordinator.exchange import Timers
from coordinator.ports import DraftPort
from coordinator.target_members import TargetMembers
from coordinator.target_pool import TargetPool
from coordinator.tenants import Tenants
from coordinator.tokenizer import Tokenizer


@dataclass(frozen=True)
class Backends:
    """What a coordinator works with, and for whom; `drafter` is None when there is none."""

    targets: TargetMembers
    drafter: DraftPort | None
    tokenizer: Tokenizer
    tenants: Tenants = field(default_factory=Tenants)


@dataclass(frozen=True)
class RoundLimits:
    """Seconds; see `CoordinatorConfig`."""

    timers: Timers
    draft_timeout_seconds: float
    client_stall_seconds: float
    target_loss_seconds: float

    @classmethod
    def of(cls, config: CoordinatorConfig) -> RoundLimits:
        return cls(
            Timers(config.resend_seconds, config.hang_seconds),
            config.draft_timeout_seconds,
            config.client_stall_seconds,
            config.target_loss_seconds,
        )


@dataclass(frozen=True)
class Setting:
    """What every request of a coordinator runs with.

    Args:
        max_queued: messages that may wait for a reader.
        now: seconds, monotonic.
    """

    targets: TargetPool
    limits: RoundLimits
    tokenizer: Tokenizer
    max_queued: int
    now: Callable[[], float] = time.monotonic
