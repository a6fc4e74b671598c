"""What the drafters of a coordinator do, at the moment it is asked: read at each scrape, never stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coordinator.metrics import ADDRESS, MODEL
from protos import coordinator_pb2 as pb

DRAFTER = "drafter"
# Of a fingerprint, as people see it.
_SHOWN = 12

_QUESTIONS: tuple[tuple[str, str], ...] = (
    ("asked", "Questions to drafters, each counted once."),
    ("hedged", "Questions that were asked at a second replica too, because they were slow."),
    ("moved", "Questions that were asked elsewhere, because their replica was lost, hung or was full."),
)
_SUMS: tuple[tuple[str, str], ...] = (
    ("rounds", "Drafted rounds, by the drafter's fingerprint."),
    ("tokens", "Tokens of drafted rounds, the target's own included."),
    ("verified", "Proposals verified."),
    ("accepted", "Proposals accepted."),
)


class Pool(Protocol):
    """What is asked of the drafters."""

    num_asked: int
    num_hedged: int
    num_moved: int

    def replicas(self) -> Sequence[pb.Replica]: ...


class DraftGauges(Collector):
    """Of one coordinator.

    Args:
        model: the value of the label `model_name`.
        draft_sums: rounds by the fingerprint of their drafter.
    """

    def __init__(self, model: str, pool: Pool, draft_sums: Callable[[], Iterable[pb.DraftSums]]) -> None:
        self._model = model
        self._pool = pool
        self._draft_sums = draft_sums

    def collect(self) -> Iterator[Metric]:
        for name, help_text in _QUESTIONS:
            counter = CounterMetricFamily(f"dlite_drafts_{name}", help_text, labels=[MODEL])
            counter.add_metric([self._model], getattr(self._pool, f"num_{name}"))
            yield counter
        held = GaugeMetricFamily(
            "dlite_drafts_outstanding", "Questions that a drafter holds.", labels=[MODEL, ADDRESS]
        )
        for each in self._pool.replicas():
            held.add_metric([self._model, each.address], each.num_running)
        yield held
        sums = list(self._draft_sums())
        for name, help_text in _SUMS:
            counter = CounterMetricFamily(f"dlite_drafter_{name}", help_text, labels=[MODEL, DRAFTER])
            for found in sums:
                counter.add_metric([self._model, found.fingerprint[:_SHOWN]], getattr(found, f"num_{name}"))
            yield counter
