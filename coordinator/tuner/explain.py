"""What the tuner believes, beside what was measured: the records of `dlite tune --explain`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coordinator.tuner.choose import MAX_COHORTS, Choice, evaluate
from coordinator.tuner.cycle import CycleCosts
from coordinator.tuner.planned import Planned
from coordinator.tuner.survival import Survival


@dataclass(frozen=True)
class FixedSize:
    """All requests at one `v`, with the best P for it.

    Args:
        measured: tokens per second while that was the usual size; None when it was not tried.
    """

    block_size: int
    num_cohorts: int
    predicted: float
    measured: float | None


@dataclass(frozen=True)
class Explanation:
    """One decision."""

    num_requests: int
    acceptance: tuple[float, ...]
    sizes: tuple[FixedSize, ...]
    chosen: Choice
    is_kept: bool

    def lines(self) -> tuple[str, ...]:
        """For people: one line a size, the nearest to what was chosen marked."""
        sizes = self.chosen.block_sizes
        mean_size = sum(sizes) / max(len(sizes), 1)
        nearest = min(self.sizes, key=lambda row: abs(row.block_size - mean_size), default=None)
        head = f"{self.num_requests} requests; acceptance " + " ".join(f"{a:.2f}" for a in self.acceptance)
        table = [
            f"{'>' if row is nearest else ' '} v = {row.block_size}  P = {row.num_cohorts}  "
            f"predicted {row.predicted:8.1f}  "
            f"measured {'       -' if row.measured is None else format(row.measured, '8.1f')} tokens/s"
            for row in self.sizes
        ]
        kept = ", kept (not enough to gain by a change)" if self.is_kept else ""
        chosen = (
            f"chosen: mean v {mean_size:.2f}, P = {self.chosen.num_cohorts}, "
            f"predicted {self.chosen.tokens_per_second:.1f} tokens/s{kept}"
        )
        return (head, *table, chosen)


def explained(
    planned: Planned, survival: Survival, measured: Mapping[int, float], max_cohorts: int
) -> Explanation:
    """A plan.

    Args:
        measured: tokens per second by the usual `v`.
    """
    longest = max((len(each) for each in planned.survivals), default=0)
    found = [measured.get(size) for size in range(1, longest + 2)]
    first = max(planned.requests, key=lambda request: request.most_draft_tokens, default=None)
    return Explanation(
        num_requests=len(planned.requests),
        acceptance=survival.acceptance("", first.class_name, longest) if first else (),
        sizes=fixed_sizes(planned.survivals, planned.costs, found, max_cohorts),
        chosen=planned.choice,
        is_kept=planned.is_kept,
    )


def fixed_sizes(
    survivals: Sequence[Sequence[float]],
    costs: CycleCosts,
    measured: Sequence[float | None],
    max_cohorts: int = MAX_COHORTS,
) -> tuple[FixedSize, ...]:
    """Predicted tokens per second over `v`.

    Args:
        survivals: [N][K_r]; a request with fewer proposals takes what it has.
        measured: by `v - 1`, as far as there is any.
    """
    longest = max((len(survival) for survival in survivals), default=0)
    return tuple(_fixed(size, survivals, costs, measured, max_cohorts) for size in range(1, longest + 2))


def _fixed(
    size: int,
    survivals: Sequence[Sequence[float]],
    costs: CycleCosts,
    measured: Sequence[float | None],
    max_cohorts: int,
) -> FixedSize:
    sizes = [min(size, len(survival) + 1) for survival in survivals]
    most = max(min(max_cohorts, sum(size > 1 for size in sizes)), 1)
    rates = {number: evaluate(sizes, number, survivals, costs) for number in range(1, most + 1)}
    best = max(rates, key=rates.__getitem__)
    return FixedSize(size, best, rates[best], measured[size - 1] if size <= len(measured) else None)
