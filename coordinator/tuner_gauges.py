"""What the tuner has chosen, at the moment it is asked: read at each scrape, never stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coordinator.metrics import MODEL
from coordinator.tuner.tuner import Decision


class TunerGauges(Collector):
    """Of one coordinator; absent before the first decision.

    Args:
        model: the value of the label `model_name`.
        decision: the one in force, or None.
    """

    def __init__(self, model: str, decision: Callable[[], Decision | None]) -> None:
        self._model = model
        self._decision = decision

    def collect(self) -> Iterable[Metric]:
        decision = self._decision()
        if decision is None or not decision.plan.block_sizes:
            return
        plan = decision.plan
        mean_size = sum(plan.block_sizes) / len(plan.block_sizes)
        yield self._gauge("dlite_tuner_requests", "Requests that are planned for.", len(plan.block_sizes))
        yield self._gauge("dlite_tuner_verify_block_size", "Mean v of the plan; 1 is no draft.", mean_size)
        yield self._gauge("dlite_tuner_draft_tokens", "k of the plan's longest draft.", plan.num_draft_tokens)
        yield self._gauge("dlite_tuner_cohorts", "P, cohorts of the plan.", plan.num_cohorts)
        yield self._gauge(
            "dlite_tuner_predicted_tokens_per_second",
            "Of all planned requests together.",
            plan.tokens_per_second,
        )

    def _gauge(self, name: str, help_text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, help_text, labels=[MODEL])
        family.add_metric([self._model], value)
        return family
