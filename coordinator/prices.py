"""What rows, drafts and ways cost by the decision in force. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from coordinator.tuner.choose import Choice
from coordinator.tuner.costs import Costs
from coordinator.tuner.learning import Learning
from coordinator.tuner.sources import Offer, Pick, Source, pick_source
from coordinator.tuner.tuner import Decision, TunedRequest
from coordinator.tuner.verify import Price

# Of a draft's time, for proposals beyond those that are to be verified.
_FREE_SHARE = 0.02


@dataclass(frozen=True)
class WaitingOffer:
    """Proposals that are there already: a lookup or a kept tail."""

    source: Source
    class_name: str
    num_proposals: int


class Prices:
    """Of one plan.

    Args:
        num_runs: requests that decode alone; their rows are in every step.
        way_seconds: to the target and back.
    """

    def __init__(self, decision: Decision, costs: Costs, num_runs: int, way_seconds: float) -> None:
        self.plan: Choice = decision.plan
        self._decision = decision
        self._costs = costs
        self._num_runs = num_runs
        self._way_seconds = way_seconds
        self._row_seconds: list[float] = list(decision.costs.verify_seconds)

    @classmethod
    def of(cls, decision: Decision, costs: Costs) -> Prices:
        """By what is known now."""
        num_runs = sum(size == 1 for size in decision.plan.block_sizes)
        return cls(decision, costs, num_runs, costs.target_link.seconds(0))

    @cached_property
    def num_draft_tokens(self) -> int:
        """`k` to ask for: what the plan verifies at most, so that confidence has a choice, and more where
        that costs next to nothing: what is left over may be verified later."""
        planned = self.plan.num_draft_tokens
        # What more proposals cost shows only once drafts of different lengths were seen.
        if planned == 0 or not self._costs.draft.knows_slope:
            return planned
        by_k = self._decision.costs.draft_seconds[self._batch]
        allowed = by_k[planned] * (1.0 + _FREE_SHARE)
        return max(k for k in range(planned, len(by_k)) if by_k[k] <= allowed)

    @property
    def _batch(self) -> int:
        """Requests of a cohort."""
        num_drafting = len(self.plan.block_sizes) - self._num_runs
        return max(-(-num_drafting // self.plan.num_cohorts), 1)

    def of_rows(self, num_rows: int) -> Price:
        """What a row of the target costs in a step of so many rows, beside those that run."""
        return Price(
            self.plan.tokens_per_second, tuple(self._rows(self._num_runs + num_rows)), self._num_runs
        )

    def pick(
        self, learning: Learning, request: TunedRequest, draft_size: int, offers: Sequence[WaitingOffer]
    ) -> Pick:
        """The best of some offers, of a draft of `draft_size` rows (1: none) and of a Run."""
        found = [
            Offer(
                offer.source,
                learning.survival(request.request_id, offer.class_name, offer.num_proposals),
                self._way_seconds,
            )
            for offer in offers
        ]
        if draft_size > 1:
            found.append(self._draft(learning, request, draft_size - 1))
        # A request that runs now is one of those.
        num_others = max(self._num_runs - (draft_size == 1), 0)
        longest = max(len(offer.survival) for offer in found)
        best = pick_source(found, tuple(self._rows(num_others + 1 + longest)), num_others)
        if best.source in (Source.RUN, Source.DRAFTER) and learning.looks_anyway():
            return Pick(offers[0].source, offers[0].num_proposals + 1, best.tokens_per_second)
        return best

    def _draft(self, learning: Learning, request: TunedRequest, k: int) -> Offer:
        costs = self._decision.costs
        ahead = costs.draft_seconds[self._batch][self.plan.num_draft_tokens] + costs.network_seconds
        return Offer(Source.DRAFTER, learning.survival(request.request_id, request.class_name, k), ahead)

    def _rows(self, most: int) -> list[float]:
        """T_V by rows, up to `most` of them at least."""
        while len(self._row_seconds) <= most:
            self._row_seconds.append(self._costs.verify.seconds(len(self._row_seconds)))
        return self._row_seconds
