"""The cost model: what a cycle of cohorts takes and commits.

    T_cycle(P) = max(sum of T_V over cohorts, sum of T_D over cohorts, max(T_V + T_D) + T_net) + T_S

Every speculating request commits once a cycle. `v = 1` is `Run`: one token a step, no network; its
rows are counted in every T_V, and it goes on stepping while the others draft. Cohorts are of equal
size, so each takes what the largest takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class CycleCosts:
    """What steps cost now, in seconds; a snapshot of what was learned.

    Args:
        verify_seconds: [rows + 1], T_V by rows, index 0 is 0.
        draft_seconds: [batch + 1][k + 1], T_D by batch and proposals, 0 where either is 0.
        network_seconds: T_net, both links.
        overhead_seconds: T_S, state and scheduling.
    """

    verify_seconds: tuple[float, ...]
    draft_seconds: tuple[tuple[float, ...], ...]
    network_seconds: float
    overhead_seconds: float


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
    rows = -(-(shape.num_speculating + shape.num_proposals) // num_cohorts)
    batch = -(-shape.num_speculating // num_cohorts)
    verify = costs.verify_seconds[rows + shape.num_runs]
    draft = costs.draft_seconds[batch][shape.num_draft_tokens]
    # A cohort that arrives in the middle of a step of the running requests waits for its end.
    through = verify + draft + costs.network_seconds + run_seconds / 2
    seconds = max(num_cohorts * verify, num_cohorts * draft, through) + costs.overhead_seconds
    if shape.num_runs == 0:
        return Cycle(seconds, 0.0)
    idle = max(seconds - num_cohorts * verify, 0.0)
    return Cycle(seconds, num_cohorts + idle / run_seconds)


def tokens_per_second(shape: Shape, num_cohorts: int, costs: CycleCosts, num_tokens: float) -> float:
    """The whole rate; `num_tokens` are what the speculating requests commit in a cycle."""
    if shape.num_runs + shape.num_speculating == 0:
        return 0.0
    cycle = cycle_of(shape, num_cohorts, costs)
    return (num_tokens + shape.num_runs * cycle.num_run_steps) / cycle.seconds
