"""A plan in force: for whom it was made, by what, and whether it stays. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.tuner.choose import Choice, evaluate, shape_of
from coordinator.tuner.cycle import CycleCosts, cycle_of
from coordinator.tuner.probing import ProbeSettings, probe_probability


@dataclass(frozen=True)
class TunedRequest:
    """A request as the tuner sees it.

    Args:
        class_name: of traffic and source, such as "chat/drafter".
        most_draft_tokens: what its drafter gives and the request has use for; 0 must run.
        num_context: committed tokens.
    """

    request_id: str
    class_name: str
    most_draft_tokens: int
    num_context: int = 0


@dataclass(frozen=True)
class Planned:
    requests: tuple[TunedRequest, ...]
    survivals: tuple[tuple[float, ...], ...]
    costs: CycleCosts
    choice: Choice
    is_kept: bool

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(request.request_id for request in self.requests)

    def probe_probability(self, sizes: tuple[int, ...], num_probes: int, settings: ProbeSettings) -> float:
        """How often a cycle may have these block sizes, when so many probes share the budget."""
        usual = self.choice
        rate = evaluate(sizes, usual.num_cohorts, self.survivals, self.costs)
        seconds = cycle_of(shape_of(sizes), usual.num_cohorts, self.costs).seconds
        lost_seconds = seconds * (1.0 - rate / usual.tokens_per_second)
        # A Run that is left must be held, and begun again: the wire's time, of a part of the requests.
        num_left = sum(size > 1 for size, before in zip(sizes, usual.block_sizes, strict=True) if before == 1)
        lost_seconds += self.costs.network_seconds * num_left / len(sizes)
        usual_seconds = cycle_of(shape_of(usual.block_sizes), usual.num_cohorts, self.costs).seconds
        return probe_probability(usual_seconds / num_probes, lost_seconds, settings)


def way_share(before: Choice, best: Choice, costs: CycleCosts, num_cycles: int) -> float:
    """What the way from Runs to drafts takes, as a share of so many cycles: a Run must be held first."""
    if before.num_draft_tokens > 0 or best.num_draft_tokens == 0:
        return 0.0
    cycle = cycle_of(shape_of(best.block_sizes), best.num_cohorts, costs)
    return costs.network_seconds / (num_cycles * cycle.seconds)


def settle(before: Choice, best: Choice, margin: float) -> Choice:
    """Stays with the plan before unless a change is worth it; `Run` needs no margin to win.

    Args:
        before, best: both with tokens per second by the present estimates.
    """
    needed = 1.0 if best.num_draft_tokens == 0 else 1.0 + margin
    return best if best.tokens_per_second > before.tokens_per_second * needed else before


def fits(planned: Planned, requests: tuple[TunedRequest, ...]) -> bool:
    """Whether every request can still do what was planned: near its end it has use for less."""
    sizes = planned.choice.block_sizes
    return all(size <= request.most_draft_tokens + 1 for size, request in zip(sizes, requests, strict=True))
