"""The dashboard asks only for metrics that a coordinator has, by labels that they have (CLUSTER)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from coordinator.draft_gauges import DraftGauges
from coordinator.gauges import Gauges, NamedLink
from coordinator.metrics import Metrics
from coordinator.slots import Slots
from coordinator.tuner.link_estimate import LinkEstimate
from protos import coordinator_pb2

DASHBOARD = json.loads((Path(__file__).parent.parent / "deploy" / "grafana.json").read_text())
NAMES = re.compile(r"(?:vllm:|dlite_)[a-z0-9_:]+")
# Quantiles, functions and what Grafana fills in.
LABELS = re.compile(r"by \(([a-z_, ]+)\)")


class Link:
    """A link as gauges see it, whose bandwidth is known."""

    is_connected = True
    rtt_seconds = 0.001
    num_lost = 0
    num_stale = 0

    def __init__(self) -> None:
        self.estimate = LinkEstimate()
        for size in range(200):
            self.estimate.note(0.001 + size * 1e-4, size * 100_000)


class Drafters:
    """A pool as gauges see it."""

    num_asked, num_hedged, num_moved = 100, 3, 1

    def replicas(self) -> list[coordinator_pb2.Replica]:
        return [coordinator_pb2.Replica(address="b:1", num_running=2)]


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """Names of all series of a coordinator that has served a text, and their labels."""
    from prometheus_client import generate_latest

    metrics = Metrics("m", 4)
    metrics.registry.register(Gauges("m", Slots(1, 1), lambda: [NamedLink("target", "a:1", Link())]))
    sums = [coordinator_pb2.DraftSums(fingerprint="f" * 64, num_rounds=3)]
    metrics.registry.register(DraftGauges("m", Drafters(), lambda: sums))
    usage = coordinator_pb2.Usage(prompt_tokens=1, completion_tokens=2)
    ledger = coordinator_pb2.Ledger(verified_per_position=[1], accepted_per_position=[1])
    finished = coordinator_pb2.Finished(finish_reason=1, usage=usage, ledger=ledger)
    metrics.observe(finished, 1.0)
    metrics.note_refused("BUSY")
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def queries() -> list[Any]:
    return [
        pytest.param(target["expr"], id=f"{panel['title']}-{target['refId']}")
        for panel in DASHBOARD["panels"]
        for target in panel["targets"]
    ]


@pytest.mark.parametrize("expression", queries())
def test_what_a_panel_asks_for_exists(expression: str, exported: dict[str, set[str]]) -> None:
    names = NAMES.findall(expression)
    assert names
    for name in names:
        assert name in exported, name
    for labels in LABELS.findall(expression):
        for label in labels.split(", "):
            assert label in set.union(*(exported[name] for name in names)), label
    assert expression.count("(") == expression.count(")")


def test_every_metric_of_the_coordinator_is_somewhere_on_it(exported: dict[str, set[str]]) -> None:
    shown = set(NAMES.findall(json.dumps(DASHBOARD)))
    endings = ("_created", "_sum", "_count")
    assert not {name for name in exported if name not in shown and not name.endswith(endings)}


def test_panels_have_ids_and_places_of_their_own() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels)
    assert {variable["name"] for variable in DASHBOARD["templating"]["list"]} == {"datasource", "model"}
