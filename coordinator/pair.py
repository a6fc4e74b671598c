"""What belongs to a target and the drafters together: its tuner, its cohorts."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from coordinator.cohorts import Cohorts
from coordinator.ports import DraftPort, MeasuredPort, TargetPort
from coordinator.trace.feed import RoundFeed
from coordinator.tuner.choose import MAX_COHORTS
from coordinator.tuner.costs import CostPriors
from coordinator.tuner.tuner import Tuner, TunerSettings


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
    """A target and the drafters as one text uses them; `drafter` is None when there is none. Epochs and
    feed are the coordinator's; `cohorts` are this pair's: what a step costs, and who is in it, is each
    target's own. `name` is the target's, in records of rounds."""

    target: TargetPort
    drafter: DraftPort | None
    epochs: Epochs
    feed: RoundFeed
    cohorts: Cohorts
    name: str = ""


def services_of(
    target: TargetPort,
    drafter: DraftPort | None,
    epochs: Epochs,
    feed: RoundFeed,
    now: Callable[[], float],
    max_cohorts: int = MAX_COHORTS,
) -> Services:
    """Of a pair, with a new tuner; ports that measure their link tell it."""
    draw = random.Random(0).random
    tuner = Tuner(CostPriors(), draw, TunerSettings(max_cohorts=max_cohorts))
    if isinstance(target, MeasuredPort):
        target.measure_into(tuner.costs.target_link)
    if isinstance(drafter, MeasuredPort):
        drafter.measure_into(tuner.costs.draft_link)
    return Services(target, drafter, epochs, feed, Cohorts(tuner, draw, now))
