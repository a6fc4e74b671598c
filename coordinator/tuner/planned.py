"""A plan in force: for whom it was made, by what, and whether it stays. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.tuner.choose import Choice, evaluate, shape_of
from coordinator.tuner.cycle import CycleCosts, cycle_of, tokens_per_second
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
    """What the way from Runs to drafts and back takes, as a share of so many cycles: a Run must be held
    first, and one that begins again waits for a step of the others to end."""
    if before.num_draft_tokens > 0 or best.num_draft_tokens == 0:
        return 0.0
    shape = shape_of(best.block_sizes)
    step = costs.verify_seconds[len(best.block_sizes)]
    lost = costs.network_seconds + costs.overhead(shape.num_runs, best.num_cohorts) + step / 2
    return lost / (num_cycles * cycle_of(shape, best.num_cohorts, costs).seconds)


def settle(before: Choice, best: Choice, margin: float) -> Choice:
    """Stays with the plan before unless a change is worth it; `Run` needs no margin to win.

    Args:
        before, best: both with tokens per second by the present estimates.
    """
    needed = 1.0 if best.num_draft_tokens == 0 else 1.0 + margin
    return best if best.tokens_per_second > before.tokens_per_second * needed else before


def floored(choice: Choice, costs: CycleCosts, margin: float) -> Choice:
    """`Run` in place of a plan that promises hardly more: what a Run takes is known best."""
    number = len(choice.block_sizes)
    run = Choice((1,) * number, 1, tokens_per_second(shape_of((1,) * number), 1, costs, 0.0))
    return choice if choice.tokens_per_second > run.tokens_per_second * (1.0 + margin) else run


def tokens_of(sizes: Sequence[int], survivals: Sequence[Sequence[float]]) -> float:
    """What the requests commit in a cycle together, those in a Run not counted."""
    pairs = zip(sizes, survivals, strict=True)
    return sum(1.0 + sum(survival[: size - 1]) for size, survival in pairs if size > 1)


def carry(planned: Planned, requests: Sequence[TunedRequest]) -> Choice | None:
    """The plan before, for those who are here now: who has come does what most of the others do. None when
    nobody of them is left. So a request that comes or goes does not turn all others over."""
    sizes = dict(zip(planned.names, planned.choice.block_sizes, strict=True))
    known = [sizes[request.request_id] for request in requests if request.request_id in sizes]
    if not known:
        return None
    usual = max(known, key=known.count)
    carried = tuple(
        min(sizes.get(request.request_id, usual), request.most_draft_tokens + 1) for request in requests
    )
    most = max(sum(size > 1 for size in carried), 1)
    return Choice(carried, min(planned.choice.num_cohorts, most), 0.0)


def fits(planned: Planned, requests: tuple[TunedRequest, ...]) -> bool:
    """Whether every request can still do what was planned: near its end it has use for less."""
    sizes = planned.choice.block_sizes
    return all(size <= request.most_draft_tokens + 1 for size, request in zip(sizes, requests, strict=True))
