"""The tuner: takes what rounds showed, says what they do next. No I/O, no clock; draws are handed in.

Every plan is made anew from the present estimates, and the plan before it stays only while it is
almost as good by the same estimates. So no state is final: each can be left both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from coordinator.tuner.choose import MAX_COHORTS, Choice, evaluate
from coordinator.tuner.costs import CostPriors, Costs, RoundBytes
from coordinator.tuner.cycle import CycleCosts, Shape
from coordinator.tuner.explain import Explanation, fixed_sizes
from coordinator.tuner.planned import Planned, TunedRequest, fits, settle, way_share
from coordinator.tuner.probing import ProbeSettings, is_surprise, longest_probe, other_size
from coordinator.tuner.running import RunningMean
from coordinator.tuner.search import Search
from coordinator.tuner.survival import Survival, Verified

__all__ = ["Decision", "TunedRequest", "Tuner", "TunerSettings", "settle"]

_MEASURED_WINDOW = 32
# Of a search in one decision: some 2 ms.
_RATES_A_DECISION = 800


@dataclass(frozen=True)
class TunerSettings:
    """How the tuner behaves.

    Args:
        margin: gain that is worth a change of plan, as a share.
        cycles_per_plan: a plan is made anew after so many cycles at most (one for each request, when
            they are more), earlier while plans change, and at once when requests come and go.
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
        costs: what the plan was made by. num_context: committed tokens of all requests.
    """

    block_sizes: tuple[int, ...]
    is_probe: tuple[bool, ...]
    plan: Choice
    costs: CycleCosts
    num_context: int = 0


class Tuner:
    """Chooses `v` of each request and P; `draw` gives uniform numbers in [0, 1)."""

    def __init__(
        self, priors: CostPriors, draw: Callable[[], float], settings: TunerSettings | None = None
    ) -> None:
        self.costs = Costs(priors)
        self.survival = Survival()
        self._draw = draw
        self._settings = settings or TunerSettings()
        self._planned: Planned | None = None
        self._search: Search | None = None
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
        context = sum(request.num_context for request in requests)
        together = self._probe_together(planned)
        if together != usual:
            return Decision(together, (True,) * len(usual), planned.choice, planned.costs, context)
        probed = [self._probe(index, size, planned) for index, size in enumerate(usual)]
        sizes = tuple(size if probe is None else probe for size, probe in zip(usual, probed, strict=True))
        is_probe = tuple(probe is not None for probe in probed)
        return Decision(sizes, is_probe, planned.choice, planned.costs, context)

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
            number = max(min(decision.plan.num_cohorts, shape.num_speculating), 1)
            costs = self.costs.of_shape(shape, number, decision.num_context, self._settings.num_bytes)
            self.costs.note_cycle(shape, number, seconds, costs)
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

    def _plan(self, requests: tuple[TunedRequest, ...]) -> Planned:
        before, self._age = self._planned, self._age + 1
        names = tuple(request.request_id for request in requests)
        is_same = before is not None and names == before.names and fits(before, requests)
        if before and is_same and self._search is None and self._age < self._patience:
            return before
        search = self._search
        if search is None or not is_same or not search.fits(requests):
            search = self._search = self._new_search(requests)
        search.advance(_RATES_A_DECISION)
        if search.is_done:
            self._search = None
        elif before and is_same:
            return before
        kept = best = search.best
        if before and is_same:
            rate = evaluate(
                before.choice.block_sizes, before.choice.num_cohorts, search.survivals, search.costs
            )
            way = way_share(before.choice, best, search.costs, self._settings.cycles_per_plan)
            kept = settle(replace(before.choice, tokens_per_second=rate), best, self._settings.margin + way)
        self._planned = Planned(requests, search.survivals, search.costs, kept, kept is not best)
        is_stable = before is not None and is_same and kept.block_sizes == before.choice.block_sizes
        most = max(self._settings.cycles_per_plan, len(requests))
        self._patience = min(self._patience + 1, most) if is_stable else 1
        self._age = 0
        return self._planned

    def _new_search(self, requests: tuple[TunedRequest, ...]) -> Search:
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
        return Search(survivals, costs, self._settings.max_cohorts)

    def _probe_together(self, planned: Planned) -> tuple[int, ...]:
        """All requests at one size for a cycle: what a plan costs shows only when all follow it."""
        usual, settings = planned.choice.block_sizes, self._settings.probes
        longest = max((request.most_draft_tokens for request in planned.requests), default=0)
        if longest == 0 or len(usual) == 1 or self._draw() >= settings.most:
            return usual
        size = other_size(longest, self._draw())
        sizes = tuple(min(size, request.most_draft_tokens + 1) for request in planned.requests)
        allowed = planned.probe_probability(sizes, 1, settings)
        return sizes if self._draw() * settings.most < allowed else usual

    def _probe(self, index: int, usual: int, planned: Planned) -> int | None:
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
