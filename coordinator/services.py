"""What a request is given to run with: the two services, the epoch counter, the limits."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from coordinator.cohorts import Cohorts
from coordinator.exchange import Timers
from coordinator.ports import DraftPort, TargetPort
from coordinator.tenants import Tenants
from coordinator.tokenizer import Tokenizer
from coordinator.trace.feed import RoundFeed


@dataclass(frozen=True)
class Backends:
    """What a coordinator works with, and for whom; `drafter` is None when there is none."""

    target: TargetPort
    drafter: DraftPort | None
    tokenizer: Tokenizer
    tenants: Tenants = field(default_factory=Tenants)


class Epochs:
    """One strictly increasing counter for all requests of a coordinator, from the clock's
    milliseconds: a request id that is used again always has a higher epoch."""

    def __init__(self, start: int) -> None:
        self._last = start

    def next(self, above: int = 0) -> int:
        self._last = max(self._last, above) + 1
        return self._last


@dataclass(frozen=True)
class Services:
    """The two services as one request uses them; `drafter` is None when there is none. Rounds that
    have ended are told to `feed`; `cohorts` are those of this pair."""

    target: TargetPort
    drafter: DraftPort | None
    epochs: Epochs
    feed: RoundFeed
    cohorts: Cohorts


@dataclass(frozen=True)
class RoundLimits:
    """Seconds; see `CoordinatorConfig`."""

    timers: Timers
    draft_timeout_seconds: float
    client_stall_seconds: float
    target_loss_seconds: float


@dataclass(frozen=True)
class Setting:
    """What every request of a coordinator runs with.

    Args:
        max_queued: messages that may wait for a reader.
        now: seconds, monotonic.
    """

    services: Services
    limits: RoundLimits
    tokenizer: Tokenizer
    max_queued: int
    now: Callable[[], float] = time.monotonic
