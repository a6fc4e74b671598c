"""How many drafters there should be. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, model_validator

# Fewer only when what remains would be below this share of what calls for more: no to and fro.
SLACK = 0.5


class AutoscaleSpec(BaseModel):
    """When drafters are added and taken away.

    Args:
        min, max: number of drafters.
        outstanding: rounds that a drafter may have waiting and under way, on average.
        busy: share of the time that drafters are at work, from which on there may be more of them.
        window_seconds: every decision looks back so far, and begins anew after a change.
        interval_seconds: between two looks.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    min: int = Field(default=1, ge=1)
    max: int = Field(default=4, ge=1, le=1024)
    outstanding: float = Field(default=4.0, gt=0)
    busy: float = Field(default=0.8, gt=0, le=1)
    window_seconds: float = Field(default=30.0, gt=0)
    interval_seconds: float = Field(default=1.0, gt=0)

    @model_validator(mode="after")
    def _in_order(self) -> AutoscaleSpec:
        if self.max < self.min:
            raise ValueError(f"max {self.max} is below min {self.min}")
        if self.window_seconds < self.interval_seconds:
            raise ValueError("window_seconds is below interval_seconds")
        return self

    @property
    def num_samples(self) -> int:
        """Of a whole window."""
        return math.ceil(self.window_seconds / self.interval_seconds)


@dataclass(frozen=True)
class Sample:
    """One look: outstanding rounds of each drafter that serves."""

    outstanding: tuple[int, ...]


def wanted_drafters(samples: Sequence[Sample], spec: AutoscaleSpec, num_now: int) -> int:
    """The number of drafters there should be.

    Args:
        samples: since the last change, oldest first.
        num_now: drafters that there are.

    Returns:
        num_now while there is no whole window yet.
    """
    bounded = min(max(num_now, spec.min), spec.max)
    window = samples[-spec.num_samples :]
    looks = [count for sample in window for count in sample.outstanding]
    if bounded != num_now or len(window) < spec.num_samples or not looks:
        return bounded
    outstanding = sum(looks) / len(window)  # of all drafters together
    busy = sum(count > 0 for count in looks) / len(looks)
    if outstanding > num_now * spec.outstanding and busy >= spec.busy:
        return min(math.ceil(outstanding / spec.outstanding), spec.max)
    remaining = num_now - 1
    is_idle = busy * num_now < remaining * spec.busy * SLACK
    if remaining >= spec.min and is_idle and outstanding < remaining * spec.outstanding * SLACK:
        return remaining
    return num_now
