"""What is true of a coordinator at the moment it is asked: read at each scrape, never stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coordinator.metrics import ADDRESS, MODEL
from coordinator.tuner.link_estimate import LinkEstimate


class Load(Protocol):
    """How busy a coordinator is."""

    @property
    def num_used(self) -> int: ...

    @property
    def num_waiting(self) -> int: ...


class Link(Protocol):
    """A stream to a service."""

    @property
    def is_connected(self) -> bool: ...

    @property
    def rtt_seconds(self) -> float | None: ...

    @property
    def estimate(self) -> LinkEstimate: ...

    @property
    def num_lost(self) -> int: ...

    @property
    def num_stale(self) -> int: ...


@dataclass(frozen=True)
class NamedLink:
    """A stream, to which kind of service ("target" or "draft") and where."""

    name: str
    address: str
    link: Link


# The streams that there are now: replicas come and go.
Links = Callable[[], Iterable[NamedLink]]


class Gauges(Collector):
    """Load and links of one coordinator.

    Args:
        model: the value of the label `model_name`.
        load: texts that run, requests that wait.
    """

    def __init__(self, model: str, load: Load, links: Links) -> None:
        self._model = model
        self._load = load
        self._links = links

    def collect(self) -> Iterable[Metric]:
        yield self._gauge("vllm:num_requests_running", "Texts that run.", self._load.num_used)
        yield self._gauge("vllm:num_requests_waiting", "Requests that wait.", self._load.num_waiting)
        yield from self._of_links()

    def _gauge(self, name: str, help_text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, help_text, labels=[MODEL])
        family.add_metric([self._model], value)
        return family

    def _of_links(self) -> Iterator[Metric]:
        labels = [MODEL, "link", ADDRESS]
        up = GaugeMetricFamily("dlite_link_up", "Whether the service is connected.", labels=labels)
        rtt = GaugeMetricFamily("dlite_link_rtt_seconds", "Last round trip of the wire alone.", labels=labels)
        lost = CounterMetricFamily("dlite_link_lost", "Streams that broke.", labels=labels)
        stale = CounterMetricFamily("dlite_stale_answers", "Answers that came too late.", labels=labels)
        for each in self._links():
            link, values = each.link, [self._model, each.name, each.address]
            up.add_metric(values, float(link.is_connected))
            rtt.add_metric(values, link.rtt_seconds or 0.0)
            lost.add_metric(values, link.num_lost)
            stale.add_metric(values, link.num_stale)
        yield from (up, rtt, lost, stale)
        yield from self._measured()

    def _measured(self) -> Iterator[Metric]:
        labels = [MODEL, "link", ADDRESS]
        quantiles = GaugeMetricFamily(
            "dlite_link_rtt_quantile_seconds",
            "Round trip of an empty message, the peer's compute left out.",
            labels=[*labels, "quantile"],
        )
        jitter = GaugeMetricFamily(
            "dlite_link_jitter_seconds", "Mean difference of successive round trips.", labels=labels
        )
        bandwidth = GaugeMetricFamily(
            "dlite_link_bytes_per_second", "Bandwidth; absent where size makes no difference.", labels=labels
        )
        for each in self._links():
            report, values = each.link.estimate.report(), [self._model, each.name, each.address]
            quantiles.add_metric([*values, "0.5"], report.rtt_p50_seconds)
            quantiles.add_metric([*values, "0.9"], report.rtt_p90_seconds)
            quantiles.add_metric([*values, "0.99"], report.rtt_p99_seconds)
            jitter.add_metric(values, report.jitter_seconds)
            if report.bytes_per_second is not None:
                bandwidth.add_metric(values, report.bytes_per_second)
        yield from (quantiles, jitter, bandwidth)
