"""What the model of `coordinator.tuner.cycle` says of services whose costs are set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from coordinator.tuner.cycle import Cycle, CycleCosts, Shape, cycle_of, tokens_per_second
from deploy.bench.set_costs import DraftCosts, VerifyCosts, survival


@dataclass(frozen=True)
class SetCosts:
    """The truth of a run.

    Args:
        num_context: mean context of a request.
        network_seconds: of both links, as emulated.
        overhead_seconds: T_S, measured on services that cost nothing over links as they are.
    """

    verify: VerifyCosts = field(default_factory=VerifyCosts)
    draft: DraftCosts = field(default_factory=DraftCosts)
    num_context: int = 0
    network_seconds: float = 0.0
    overhead_seconds: float = 0.0

    def costs(self, num_requests: int, k: int) -> CycleCosts:
        """As the tuner's own snapshot, from what is set instead of what was measured."""
        most_rows = num_requests * (k + 1)
        return CycleCosts(
            verify_seconds=(
                0.0,
                *(
                    self.verify(rows, self.num_context * min(rows, num_requests))
                    for rows in range(1, most_rows + 1)
                ),
            ),
            draft_seconds=tuple(
                tuple(self.draft(batch, n) if batch and n else 0.0 for n in range(k + 1))
                for batch in range(num_requests + 1)
            ),
            network_seconds=self.network_seconds,
            overhead_seconds=self.overhead_seconds,
        )

    def cycle(self, num_requests: int, v: int, num_cohorts: int = 1, k: int | None = None) -> Cycle:
        """One cycle of equal requests; v = 1 is a step of `Run`."""
        k = max(v - 1, 0) if k is None else k
        shape = _shape(num_requests, v, k)
        return cycle_of(shape, num_cohorts, self.costs(num_requests, max(k, v - 1, 1)))

    def rate(self, num_requests: int, v: int, acceptance: Sequence[float], num_cohorts: int = 1) -> float:
        """Tokens per second of all of them."""
        shape = _shape(num_requests, v, max(v - 1, 0))
        num_tokens = shape.num_speculating * tau(acceptance, v)
        costs = self.costs(num_requests, max(v - 1, 1))
        return tokens_per_second(shape, num_cohorts, costs, num_tokens)


def _shape(num_requests: int, v: int, k: int) -> Shape:
    if v == 1:
        return Shape(num_requests, 0, 0, 0)
    return Shape(0, num_requests, num_requests * (v - 1), k)


def tau(acceptance: Sequence[float], v: int) -> float:
    """Tokens of a round that verifies v - 1 proposals."""
    return 1.0 + sum(survival(acceptance[: v - 1]))
