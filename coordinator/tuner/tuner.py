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
from coordinator.tuner.explain import Explanation, explained
from coordinator.tuner.planned import (
    Planned,
    TunedRequest,
    carry,
    fits,
    floored,
    settle,
    tokens_of,
    way_share,
)
from coordinator.tuner.probing import ProbeSettings, is_surprise, longest_probe, other_size
from coordinator.tuner.running import RunningMean
from coordinator.tuner.search import Search
from coordinator.tuner.survival import Survival, Verified

__all__ = ["Decision", "TunedRequest", "Tuner", "TunerSettings", "settle"]

_MEASURED_WINDOW = 32
# Of a search: some 2 ms where a decision waits for it, less between decisions.
_SUMS_A_DECISION = 300
_SUMS_A_THOUGHT = 60
# A plan is made anew at once when it is found to give so much more or less than it promised.
_DRIFT = 0.05


@dataclass(frozen=True)
class TunerSettings:
    """How the tuner behaves.

    Args:
        margin: gain that is worth a change of plan, as a share.
        cycles_per_plan: a plan is made anew after so many cycles at most, earlier while plans change or
            acceptance moves, and at once when requests come and go.
        cycles_of_way: cycles that a change from Run to drafting is taken to last.
    """

    margin: float = 0.02
    cycles_per_plan: int = 16
    cycles_of_way: int = 24
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
        self._requests: tuple[TunedRequest, ...] = ()
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

    def think(self) -> bool:
        """Looks for a better plan, a little further at each call: to be called when there is time. What it
        finds is in force from the next decision on. Tells whether there is more to look at."""
        planned = self._planned
        if planned is None or (self._search is None and not self._is_due(planned)):
            return False
        if self._search is None or not self._search.fits(self._requests):
            self._search = self._new_search(self._requests)
        self._search.advance(_SUMS_A_THOUGHT)
        if not self._search.is_done:
            return True
        self._adopt(self._search)
        return False

    def note_block(self, request: TunedRequest, verified: Verified, was_probe: bool) -> None:
        """Takes a verified round of a request."""
        if was_probe:
            believed = self.survival.acceptance(request.request_id, request.class_name, 1)[0]
            repeats = self._repeats.get(request.request_id, 0)
            # One looks again for all of its kind.
            is_free = repeats or not any(self._repeats.values())
            again = is_free and is_surprise(believed, verified.num_accepted)
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
        if self._planned is None:
            return None
        measured = {size: mean.mean for size, mean in self._measured.items()}
        return explained(self._planned, self.survival, measured, self._settings.max_cohorts)

    def _plan(self, requests: tuple[TunedRequest, ...]) -> Planned:
        """The plan in force; of new company the best that one slice of a search finds."""
        before, self._requests, self._age = self._planned, requests, self._age + 1
        names = tuple(request.request_id for request in requests)
        if before is not None and names == before.names and fits(before, requests):
            return before
        self._search = self._new_search(requests)
        self._search.advance(_SUMS_A_DECISION)
        return self._adopt(self._search)

    def _adopt(self, search: Search) -> Planned:
        """Takes what a search has found, unless the plan before is almost as good."""
        before, kept, best, requests = self._planned, search.best, search.best, self._requests
        carried = carry(before, requests) if before else None
        if carried is not None:
            rate = evaluate(carried.block_sizes, carried.num_cohorts, search.survivals, search.costs)
            way = way_share(carried, best, search.costs, self._settings.cycles_of_way)
            kept = settle(replace(carried, tokens_per_second=rate), best, self._settings.margin + way)
        kept = floored(kept, search.costs, self._settings.margin / 2)
        is_stable = before is not None and kept.block_sizes == before.choice.block_sizes
        self._planned = Planned(requests, search.survivals, search.costs, kept, kept is not best)
        self._patience = min(2 * self._patience, self._settings.cycles_per_plan) if is_stable else 1
        self._age = 0
        if search.is_done:
            self._search = None
        return self._planned

    def _is_due(self, planned: Planned) -> bool:
        """Whether a plan should be made anew though nobody came or went."""
        if self._age >= self._patience:
            return True
        if planned.choice.num_draft_tokens == 0:
            return False  # What a Run does not show, probes do.
        sizes = planned.choice.block_sizes
        promised, found = (tokens_of(sizes, survivals) for survivals in (planned.survivals, self._hoped()))
        return abs(found - promised) > _DRIFT * promised

    def _new_search(self, requests: tuple[TunedRequest, ...]) -> Search:
        costs = self.costs.snapshot(
            len(requests),
            max((request.most_draft_tokens for request in requests), default=0),
            sum(request.num_context for request in requests),
            self._settings.num_bytes,
        )
        return Search(self._hoped(), costs, self._settings.max_cohorts)

    def _hoped(self) -> tuple[tuple[float, ...], ...]:
        """`S_1 ..` of every request."""
        return tuple(
            self.survival.hoped_survival(request.request_id, request.class_name, request.most_draft_tokens)
            for request in self._requests
        )

    def _probe_together(self, planned: Planned) -> tuple[int, ...]:
        """All requests at one size for a cycle: what a plan costs shows only when all follow it."""
        usual, settings = planned.choice.block_sizes, self._settings.probes
        longest = max((request.most_draft_tokens for request in planned.requests), default=0)
        if longest == 0 or len(usual) == 1 or self._draw() >= settings.most:
            return usual
        size = other_size(longest, self._draw())
        sizes = tuple(min(size, request.most_draft_tokens + 1) for request in planned.requests)
        allowed = planned.probe_probability(sizes, 1, settings) * settings.together
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
