"""Everything that was measured about time: both services, both links, and what is left over."""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.tuner.cost_table import CostTable, Line
from coordinator.tuner.cycle import CycleCosts, Shape, cycle_of
from coordinator.tuner.kinds import CycleKind, Overheads
from coordinator.tuner.link_estimate import LinkEstimate


@dataclass(frozen=True)
class CostPriors:
    """What is believed before anything is measured. Rather too cheap than too dear: what looks dear
    is never tried, and so never measured."""

    verify: Line = field(default_factory=lambda: Line(0.010, 0.0002))
    draft: Line = field(default_factory=lambda: Line(0.002, 0.00005))


@dataclass(frozen=True)
class RoundBytes:
    """Mean bytes of a round on each link, both ways."""

    target: int = 0
    draft: int = 0


class Costs:
    """T_V, T_D, T_net and T_S, learned online."""

    def __init__(self, priors: CostPriors) -> None:
        self.verify = CostTable(priors.verify)
        self.draft = CostTable(priors.draft)
        self.target_link = LinkEstimate()
        self.draft_link = LinkEstimate()
        self.overheads = Overheads()

    def note_cycle(self, shape: Shape, num_cohorts: int, seconds: float, costs: CycleCosts) -> None:
        """Takes the measured time of a speculating cycle.

        Args:
            costs: by what is known now, this cycle included, without any T_S.
        """
        if shape.num_speculating > 0:
            beyond = seconds - cycle_of(shape, num_cohorts, costs).seconds
            self.overheads.note(CycleKind.of(shape.num_runs, num_cohorts), beyond)

    def of_shape(self, shape: Shape, num_cohorts: int, num_context: int, num_bytes: RoundBytes) -> CycleCosts:
        """What a cycle of this shape needs, as it was measured: T_S is what is left of a cycle, and must
        not hold what the tables have yet to learn."""
        num_requests = shape.num_runs + shape.num_speculating
        share = num_context / max(num_requests, 1)
        large, k = -(-shape.num_speculating // num_cohorts), shape.num_draft_tokens
        num_rows = shape.num_speculating + shape.num_proposals
        of_cohorts = {-(-num_rows * size // shape.num_speculating) for size in (large, large - 1)}
        rows = {shape.num_runs + each for each in of_cohorts} | {shape.num_runs}
        verify = [0.0] * (max(rows) + 1)
        for number in rows - {0}:
            verify[number] = self.verify.measured_seconds(number, share * min(number, num_requests))
        draft = [
            (0.0,) * k + (self.draft.measured_seconds(size, k) if size else 0.0,) for size in range(large + 1)
        ]
        network = self.target_link.seconds(num_bytes.target) + self.draft_link.seconds(num_bytes.draft)
        return CycleCosts(tuple(verify), tuple(draft), network, 0.0)

    def snapshot(
        self, num_requests: int, most_draft_tokens: int, num_context: int, num_bytes: RoundBytes
    ) -> CycleCosts:
        """The costs for so many requests, each with at most so many proposals.

        Args:
            num_context: committed tokens of all requests together.
        """
        most_rows = num_requests * (most_draft_tokens + 1)
        context_seconds = self.verify.slope * num_context / max(num_requests, 1)
        bare = self.verify.bare_seconds(most_rows)
        batches, proposal_seconds = self.draft.bare_seconds(num_requests), self.draft.slope
        return CycleCosts(
            verify_seconds=tuple(
                bare[rows] + context_seconds * min(rows, num_requests) for rows in range(most_rows + 1)
            ),
            draft_seconds=tuple(
                tuple(
                    batches[batch] + proposal_seconds * k if batch and k else 0.0
                    for k in range(most_draft_tokens + 1)
                )
                for batch in range(num_requests + 1)
            ),
            network_seconds=self.target_link.seconds(num_bytes.target)
            + self.draft_link.seconds(num_bytes.draft),
            overhead_seconds=0.0,
            overheads=self.overheads.all(),
        )
