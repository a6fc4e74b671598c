"""Spans of texts and their rounds: which are told, what is in them, and what is not (CLUSTER, seeing it)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from coordinator.client import AsyncClient
from coordinator.spans import MAX_ROUNDS, Spans, is_sampled, make_provider, open_spans
from coordinator.startup import RunningCoordinator, start_coordinator
from coordinator.target_link import TargetLink
from protos.errors import DliteError
from tests.coordinator_fakes import TableEngine, counting
from tests.coordinator_harness import make_config, request, serve_target

PROMPT = "my secret is xyzzy-4711"


@contextmanager
def watching(running: RunningCoordinator, share: float) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    coordinator = running.coordinator
    coordinator.spans = Spans(make_provider(SimpleSpanProcessor(exporter)), share)
    with coordinator.feed.listening(coordinator.spans):
        yield exporter
    coordinator.spans.stop()


def by_parent(spans: tuple[ReadableSpan, ...]) -> tuple[ReadableSpan, list[ReadableSpan]]:
    """The span of the one text, and those of its rounds."""
    (text,) = [span for span in spans if span.parent is None]
    assert text.context is not None
    rounds = [span for span in spans if span.parent is not None]
    assert {span.parent.span_id for span in rounds if span.parent} == {text.context.span_id}
    return text, rounds


async def test_one_span_a_round_with_its_times_and_without_its_text() -> None:
    async with serve_target(TableEngine(counting)) as (address, _):
        running = await start_coordinator(make_config(target_address=address, source="lookup"))
        with watching(running, 1.0) as exporter:
            async with AsyncClient(running.address) as client:
                message = request(prompt=PROMPT, max_tokens=20, request_id="r1")
                answer = await client.complete(message)
        text, rounds = by_parent(exporter.get_finished_spans())
        await running.stop()
    assert text.attributes is not None
    assert text.attributes["dlite.request_id"] == "r1"
    assert text.attributes["dlite.completion_tokens"] == 20
    assert len(rounds) == answer.finished.ledger.num_rounds
    # The first token is decided while the prompt is computed, which the ledger counts as no round.
    assert sum(int(span.attributes["dlite.tokens"]) for span in rounds if span.attributes) == 19
    assert text.start_time is not None
    assert text.end_time is not None
    for span in rounds:
        assert span.start_time is not None
        assert span.end_time is not None
        assert text.start_time <= span.start_time <= span.end_time <= text.end_time
    told = "".join(span.to_json() for span in exporter.get_finished_spans())
    assert "xyzzy" not in told


async def test_of_a_share_of_none_only_failed_requests_are_told() -> None:
    async with serve_target(TableEngine(counting), max_context=8192) as (address, _):
        config = make_config(target_address=address, target_loss_seconds=0.2, connect_seconds=5.0)
        running = await start_coordinator(config)
        with watching(running, 0.0) as exporter:
            async with AsyncClient(running.address) as client:
                await client.complete(request(max_tokens=5))
                assert exporter.get_finished_spans() == ()
                stream = client.generate(request(max_tokens=5000, request_id="lost"), 30.0)
                await anext(stream)
                (link,) = running.replicas.targets.links.values()
                assert isinstance(link, TargetLink)
                link._link.cut()
                link._link._stopping = True
                with pytest.raises(DliteError):
                    async for _ in stream:
                        pass
        (text, *_) = [span for span in exporter.get_finished_spans() if span.parent is None]
        link._link._stopping = False
        await running.stop()
    assert json.loads(text.to_json())["status"]["status_code"] == "ERROR"


def test_the_share_is_a_share_and_everywhere_the_same() -> None:
    names = [f"request-{number}" for number in range(20_000)]
    assert sum(is_sampled(name, 0.01) for name in names) == pytest.approx(200, abs=60)
    assert not any(is_sampled(name, 0.0) for name in names)
    assert all(is_sampled(name, 1.0) for name in names)


def test_without_an_endpoint_there_are_no_spans() -> None:
    assert open_spans("", 0.5) is None
    assert MAX_ROUNDS > 0
