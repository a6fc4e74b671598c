"""The tuner: takes what rounds showed, says what they do next. No I/O, no clock; draws are handed in.

Every plan is made anew from the present estimates, and the plan before it stays only while it is
almost as good by the same estimates. So no state is final: each can be left both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from coordinator.tuner.choose import MAX_COHORTS, Choice, choose, evaluate, shape_of
from coordinator.tuner.costs import CostPriors, Costs, RoundBytes
from coordinator.tuner.cycle import CycleCosts, Shape, cycle_of
from coordinator.tuner.explain import Explanation, fixed_sizes
from coordinator.tuner.probing import ProbeSettings, is_surprise, longest_probe, other_size, probe_probability
from coordinator.tuner.running import RunningMean
from coordinator.tuner.survival import Survival, Verified

_MEASURED_WINDOW = 32


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
class TunerSettings:
    """How the tuner behaves.

    Args:
        margin: gain that is worth a change of plan, as a share.
        cycles_per_plan: a plan is made anew after so many cycles at most, earlier while plans
            change, and at once when requests come and go.
    """

    margin: float = 0.02
    cycles_per_plan: int = 8
    max_cohorts: int = MAX_COHORTS
    probes: ProbeSettings = field(default_factory=ProbeSettings)
    num_bytes: RoundBytes = field(default_factory=RoundBytes)


@dataclass(frozen=True)
class Decision:
    """What the requests do in the coming cycle.

    Args:
        block_sizes: [N], `v` with probes in it; is_probe: [N].
        plan: what they do when they do not probe.
        costs: what the plan was made by.
    """

    block_sizes: tuple[int, ...]
    is_probe: tuple[bool, ...]
    plan: Choice
    costs: CycleCosts


@dataclass(frozen=True)
class _Planned:
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
        usual_seconds = cycle_of(shape_of(usual.block_sizes), usual.num_cohorts, self.costs).seconds
        return probe_probability(usual_seconds / num_probes, lost_seconds, settings)


class Tuner:
    """Chooses `v` of each request and P; `draw` gives uniform numbers in [0, 1)."""

    def __init__(
        self, priors: CostPriors, draw: Callable[[], float], settings: TunerSettings | None = None
    ) -> None:
        self.costs = Costs(priors)
        self.survival = Survival()
        self._draw = draw
        self._settings = settings or TunerSettings()
        self._planned: _Planned | None = None
        self._age = 0
        self._patience = 1
        self._repeats: dict[str, int] = {}
        self._measured: dict[int, RunningMean] = {}

    @property
    def probes(self) -> ProbeSettings:
        """How much is spent on looking."""
        return self._settings.probes

    @property
    def num_bytes(self) -> RoundBytes:
        """Mean bytes of a round on each link."""
        return self._settings.num_bytes

    def decide(self, requests: Sequence[TunedRequest]) -> Decision:
        """The coming cycle of these requests."""
        planned = self._plan(tuple(requests))
        usual = planned.choice.block_sizes
        together = self._probe_together(planned)
        if together != usual:
            return Decision(together, (True,) * len(usual), planned.choice, planned.costs)
        probed = [self._probe(index, size, planned) for index, size in enumerate(usual)]
        sizes = tuple(size if probe is None else probe for size, probe in zip(usual, probed, strict=True))
        return Decision(sizes, tuple(probe is not None for probe in probed), planned.choice, planned.costs)

    def note_block(self, request: TunedRequest, verified: Verified, was_probe: bool) -> None:
        """Takes a verified round of a request."""
        if was_probe:
            believed = self.survival.acceptance(request.request_id, request.class_name, 1)[0]
            repeats = self._repeats.get(request.request_id, 0)
            again = is_surprise(believed, verified.num_accepted)
            self._repeats[request.request_id] = repeats + 1 if again else 0
            self._age = self._settings.cycles_per_plan
        self.survival.note(request.request_id, request.class_name, verified)

    def note_cycle(self, decision: Decision, shape: Shape, num_tokens: int, seconds: float) -> None:
        """Takes a whole cycle: what travelled, what was committed, how long it took."""
        if shape.num_speculating:
            most = max(decision.block_sizes) - 1
            costs = self.costs.snapshot(len(decision.block_sizes), most, 0, self._settings.num_bytes)
            self.costs.note_cycle(shape, decision.plan.num_cohorts, seconds, costs)
        if any(decision.is_probe) or not decision.block_sizes:
            return
        usual = round(sum(decision.block_sizes) / len(decision.block_sizes))
        self._measured.setdefault(usual, RunningMean(_MEASURED_WINDOW)).note(num_tokens / seconds)

    def forget(self, request_id: str) -> None:
        """The request is over."""
        self.survival.forget(request_id)
        self._repeats.pop(request_id, None)

    def explain(self) -> Explanation | None:
        """The plan in force; None before the first."""
        planned = self._planned
        if planned is None:
            return None
        longest = max((len(survival) for survival in planned.survivals), default=0)
        found = [self._measured.get(size) for size in range(1, longest + 2)]
        measured = [mean.mean if mean else None for mean in found]
        most = self._settings.max_cohorts
        first = max(planned.requests, key=lambda request: request.most_draft_tokens, default=None)
        return Explanation(
            num_requests=len(planned.requests),
            acceptance=self.survival.acceptance("", first.class_name, longest) if first else (),
            sizes=fixed_sizes(planned.survivals, planned.costs, measured, most),
            chosen=planned.choice,
            is_kept=planned.is_kept,
        )

    def _plan(self, requests: tuple[TunedRequest, ...]) -> _Planned:
        before, self._age = self._planned, self._age + 1
        same = before is not None and tuple(request.request_id for request in requests) == before.names
        if before and same and self._age < self._patience and _fits(before, requests):
            return before
        survivals = tuple(
            self.survival.hoped_survival(request.request_id, request.class_name, request.most_draft_tokens)
            for request in requests
        )
        costs = self.costs.snapshot(
            len(requests),
            max((request.most_draft_tokens for request in requests), default=0),
            sum(request.num_context for request in requests),
            self._settings.num_bytes,
        )
        best = choose(survivals, costs, self._settings.max_cohorts)
        kept = best
        if before and same and _fits(before, requests):
            rate = evaluate(before.choice.block_sizes, before.choice.num_cohorts, survivals, costs)
            kept = settle(replace(before.choice, tokens_per_second=rate), best, self._settings.margin)
        self._planned = _Planned(requests, survivals, costs, kept, kept is not best)
        is_stable = before is not None and same and kept.block_sizes == before.choice.block_sizes
        self._patience = min(self._patience + 1, self._settings.cycles_per_plan) if is_stable else 1
        self._age = 0
        return self._planned

    def _probe_together(self, planned: _Planned) -> tuple[int, ...]:
        """All requests at one size for a cycle: what a plan costs shows only when all follow it."""
        usual, settings = planned.choice.block_sizes, self._settings.probes
        longest = max((request.most_draft_tokens for request in planned.requests), default=0)
        if longest == 0 or len(usual) == 1 or self._draw() >= settings.most:
            return usual
        size = other_size(longest, self._draw())
        sizes = tuple(min(size, request.most_draft_tokens + 1) for request in planned.requests)
        allowed = planned.probe_probability(sizes, 1, settings)
        return sizes if self._draw() * settings.most < allowed else usual

    def _probe(self, index: int, usual: int, planned: _Planned) -> int | None:
        """The `v` of a probe, or None."""
        request, survival = planned.requests[index], planned.survivals[index]
        if request.most_draft_tokens == 0:
            return None
        longest = longest_probe(survival)
        if 0 < self._repeats.get(request.request_id, 0) <= self._settings.probes.most_repeats:
            return longest if longest > usual else None
        if self._draw() >= self._settings.probes.most:
            return None
        is_long = usual == 1 or self._draw() < 0.5
        size = longest if is_long else other_size(request.most_draft_tokens, self._draw())
        if size == usual:
            return None
        usual_sizes = planned.choice.block_sizes
        sizes = (*usual_sizes[:index], size, *usual_sizes[index + 1 :])
        allowed = planned.probe_probability(sizes, len(sizes), self._settings.probes)
        return size if self._draw() * self._settings.probes.most < allowed else None


def settle(before: Choice, best: Choice, margin: float) -> Choice:
    """Stays with the plan before unless a change is worth it; `Run` needs no margin to win.

    Args:
        before, best: both with tokens per second by the present estimates.
    """
    needed = 1.0 if best.num_draft_tokens == 0 else 1.0 + margin
    return best if best.tokens_per_second > before.tokens_per_second * needed else before


def _fits(planned: _Planned, requests: tuple[TunedRequest, ...]) -> bool:
    """Whether every request can still do what was planned: near its end it has use for less."""
    sizes = planned.choice.block_sizes
    return all(size <= request.most_draft_tokens + 1 for size, request in zip(sizes, requests, strict=True))
