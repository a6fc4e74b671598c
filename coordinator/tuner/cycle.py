"""The cost model: what a cycle of cohorts takes and commits.

    T_cycle(P) = max(sum of T_V over cohorts, sum of T_D over cohorts, max(T_V + T_D) + T_net) + T_S

Every speculating request commits once a cycle. `v = 1` is `Run`: one token a step, no network; its
rows are counted in every T_V, and it goes on stepping while the others draft. Cohorts are of whole
requests: some have one more than the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from coordinator.tuner.kinds import CycleKind


@dataclass(frozen=True)
class CycleCosts:
    """What steps cost now, in seconds; a snapshot of what was learned.

    Args:
        verify_seconds: [rows + 1], T_V by rows, index 0 is 0.
        draft_seconds: [batch + 1][k + 1], T_D by batch and proposals, 0 where either is 0.
        network_seconds: T_net, both links.
        overhead_seconds: T_S, state and scheduling, of kinds of cycles without their own in `overheads`.
    """

    verify_seconds: tuple[float, ...]
    draft_seconds: tuple[tuple[float, ...], ...]
    network_seconds: float
    overhead_seconds: float
    overheads: Mapping[CycleKind, float] = field(default_factory=dict)

    def overhead(self, num_runs: int, num_cohorts: int) -> float:
        """T_S of a cycle in which so many run beside so many cohorts."""
        return self.overheads.get(CycleKind.of(num_runs, num_cohorts), self.overhead_seconds)


class Shape(NamedTuple):
    """What travels in one cycle.

    Args:
        num_runs: requests that decode alone.
        num_speculating: requests that draft; num_proposals: of all of them.
        num_draft_tokens: the longest draft, `k`.
    """

    num_runs: int
    num_speculating: int
    num_proposals: int
    num_draft_tokens: int


class Cycle(NamedTuple):
    """One cycle: its seconds, and the steps that a running request makes in it."""

    seconds: float
    num_run_steps: float


def cycle_of(shape: Shape, num_cohorts: int, costs: CycleCosts) -> Cycle:
    """Time of a cycle of `num_cohorts` equal cohorts; without speculation, of one step."""
    run_seconds = costs.verify_seconds[shape.num_runs]
    if shape.num_speculating == 0:
        return Cycle(run_seconds, 1.0)
    large = -(-shape.num_speculating // num_cohorts)
    num_large = shape.num_speculating - num_cohorts * (large - 1)
    num_rows = shape.num_speculating + shape.num_proposals

    def parts(size: int) -> tuple[float, float]:
        """T_V and T_D of a cohort of so many requests."""
        rows = -(-num_rows * size // shape.num_speculating) + shape.num_runs
        return costs.verify_seconds[rows], costs.draft_seconds[size][shape.num_draft_tokens]

    verify, draft = parts(large)
    # A cohort that arrives in the middle of a step of the running requests waits for its end.
    through = verify + draft + costs.network_seconds + run_seconds / 2
    verifies, drafts = num_large * verify, num_large * draft
    if num_large < num_cohorts:
        less_verify, less_draft = parts(large - 1)
        verifies += (num_cohorts - num_large) * less_verify
        drafts += (num_cohorts - num_large) * less_draft
    seconds = max(verifies, drafts, through) + costs.overhead(shape.num_runs, num_cohorts)
    if shape.num_runs == 0:
        return Cycle(seconds, 0.0)
    idle = max(seconds - verifies, 0.0)
    return Cycle(seconds, num_cohorts + idle / run_seconds)


def tokens_per_second(shape: Shape, num_cohorts: int, costs: CycleCosts, num_tokens: float) -> float:
    """The whole rate; `num_tokens` are what the speculating requests commit in a cycle."""
    if shape.num_runs + shape.num_speculating == 0:
        return 0.0
    cycle = cycle_of(shape, num_cohorts, costs)
    return (num_tokens + shape.num_runs * cycle.num_run_steps) / cycle.seconds
