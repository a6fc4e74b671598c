"""What the tuner has chosen, at the moment it is asked: read at each scrape, never stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coordinator.metrics import ADDRESS, MODEL
from coordinator.tuner.choose import Choice
from coordinator.tuner.tuner import Decision


def _mean_size(plan: Choice) -> float:
    return sum(plan.block_sizes) / len(plan.block_sizes)


_GAUGES: tuple[tuple[str, str, Callable[[Choice], float]], ...] = (
    ("dlite_tuner_requests", "Requests that are planned for.", lambda plan: len(plan.block_sizes)),
    ("dlite_tuner_verify_block_size", "Mean v of the plan; 1 is no draft.", _mean_size),
    ("dlite_tuner_draft_tokens", "k of the plan's longest draft.", lambda plan: plan.num_draft_tokens),
    ("dlite_tuner_cohorts", "P, cohorts of the plan.", lambda plan: plan.num_cohorts),
    (
        "dlite_tuner_predicted_tokens_per_second",
        "Of all planned requests together.",
        lambda plan: plan.tokens_per_second,
    ),
)


class TunerGauges(Collector):
    """Of one coordinator, whose targets have a tuner each; absent before the first decision.

    Args:
        model: the value of the label `model_name`.
        decisions: by target, the one in force or None.
    """

    def __init__(self, model: str, decisions: Callable[[], Mapping[str, Decision | None]]) -> None:
        self._model = model
        self._decisions = decisions

    def collect(self) -> Iterable[Metric]:
        plans = {
            target: decision.plan
            for target, decision in self._decisions().items()
            if decision is not None and decision.plan.block_sizes
        }
        if not plans:
            return
        for name, help_text, value in _GAUGES:
            family = GaugeMetricFamily(name, help_text, labels=[MODEL, ADDRESS])
            for target, plan in plans.items():
                family.add_metric([self._model, target], value(plan))
            yield family
