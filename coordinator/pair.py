"""What belongs to one pair of target and drafter: its tuner, its cohorts, the feed of its rounds."""

from __future__ import annotations

import random
from collections.abc import Callable

from coordinator.cohorts import Cohorts
from coordinator.ports import DraftPort, MeasuredPort, TargetPort
from coordinator.services import Epochs, Services
from coordinator.trace.feed import RoundFeed
from coordinator.tuner.choose import MAX_COHORTS
from coordinator.tuner.costs import CostPriors
from coordinator.tuner.tuner import Tuner, TunerSettings


def services_of(
    target: TargetPort,
    drafter: DraftPort | None,
    epochs: Epochs,
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
    return Services(target, drafter, epochs, RoundFeed(), Cohorts(tuner, draw, now))
