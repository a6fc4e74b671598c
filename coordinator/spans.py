"""OpenTelemetry spans: one for a text, one below it for each of its rounds.

A share of the requests is told, and every request that failed. Which ones failed is known when they have
ended, so rounds are kept until then (the newest `MAX_ROUNDS` of each text). No prompt, text, token or
error message is in a span; see `coordinator.trace.record`.

Needs `pip install dlite[otel]` and an endpoint; without an endpoint nothing of it is loaded.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from coordinator.request import CHOICE_SEPARATOR
from coordinator.trace.record import RoundRecord
from protos import coordinator_pb2
from protos.common_pb2 import FINISH_REASON_ERROR, FinishReason
from protos.errors import InvalidRequest

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

MAX_ROUNDS = 512
MAX_TEXTS = 4096
_NS = 1_000_000_000


def is_sampled(request_id: str, share: float) -> bool:
    """Whether a request is among the share that is told; the same on every coordinator."""
    digest = hashlib.sha256(request_id.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def choice_name(request_id: str, index: int) -> str:
    """How rounds name a choice of a request."""
    return f"{request_id}{CHOICE_SEPARATOR}{index}" if index else request_id


class Spans:
    """Listens to rounds, and writes spans when texts end. On the event loop; exporting is not.

    Args:
        provider: where spans go.
        share: of requests that are told even if nothing is wrong with them.
        now, wall_ns: the rounds' clock, and the wall clock at the same instant.
    """

    def __init__(
        self,
        provider: TracerProvider,
        share: float,
        now: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("dlite")
        self._share = share
        self._offset_ns = wall_ns() - int(now() * _NS)
        self._now = now
        self._rounds: dict[str, deque[RoundRecord]] = {}

    def put(self, record: RoundRecord) -> None:
        """A round has ended."""
        rounds = self._rounds.get(record.request_id)
        if rounds is None:
            if len(self._rounds) >= MAX_TEXTS:
                del self._rounds[next(iter(self._rounds))]
            rounds = self._rounds[record.request_id] = deque(maxlen=MAX_ROUNDS)
        rounds.append(record)

    def end_text(self, request_id: str, finished: coordinator_pb2.Finished, seconds: float) -> None:
        """A text has ended.

        Args:
            request_id: as rounds name it.
            seconds: since its request arrived.
        """
        rounds = self._rounds.pop(request_id, deque())
        has_failed = finished.finish_reason == FINISH_REASON_ERROR
        if has_failed or is_sampled(request_id, self._share):
            self._write(request_id, finished, seconds, rounds)

    def stop(self) -> None:
        """Sends what is left. Waits for it."""
        self._provider.shutdown()

    def _write(
        self,
        request_id: str,
        finished: coordinator_pb2.Finished,
        seconds: float,
        rounds: deque[RoundRecord],
    ) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.status import Status, StatusCode

        ended = self._now()
        usage = finished.usage
        span = self._tracer.start_span(
            "generate",
            start_time=self._wall_ns(ended - seconds),
            attributes={
                "dlite.request_id": request_id,
                "dlite.finish_reason": FinishReason.Name(finished.finish_reason),
                "dlite.prompt_tokens": usage.prompt_tokens,
                "dlite.completion_tokens": usage.completion_tokens,
                "dlite.reopens": finished.ledger.num_reopens,
            },
        )
        if finished.finish_reason == FINISH_REASON_ERROR:
            span.set_status(Status(StatusCode.ERROR))
        context = trace.set_span_in_context(span)
        for record in rounds:
            self._write_round(record, context)
        span.end(self._wall_ns(ended))

    def _write_round(self, record: RoundRecord, context: Context) -> None:
        parts = record.parts
        span = self._tracer.start_span(
            f"round {record.source}",
            context,
            start_time=self._wall_ns(record.ended - parts.wall),
            attributes={
                "dlite.round": record.round,
                "dlite.source": str(record.source),
                "dlite.drafted": record.num_drafted,
                "dlite.verified": record.num_verified,
                "dlite.accepted": record.num_accepted,
                "dlite.tokens": record.num_tokens,
                "dlite.context": record.context,
                "dlite.draft_ms": 1e3 * parts.draft,
                "dlite.verify_ms": 1e3 * parts.verify,
                "dlite.network_ms": 1e3 * (parts.draft_network + parts.target_network),
                "dlite.queue_ms": 1e3 * parts.queue,
                "dlite.scheduling_ms": 1e3 * parts.scheduling,
            },
        )
        span.end(self._wall_ns(record.ended))

    def _wall_ns(self, seconds: float) -> int:
        return self._offset_ns + int(seconds * _NS)


def make_provider(processor: SpanProcessor) -> TracerProvider:
    """Names the service, and samples nothing away: `Spans` has chosen."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON

    provider = TracerProvider(ALWAYS_ON, Resource.create({"service.name": "dlite-coordinator"}))
    provider.add_span_processor(processor)
    return provider


def open_spans(endpoint: str, share: float) -> Spans | None:
    """Spans to an OTLP endpoint (http://host:4317 is plaintext, https:// is TLS); None without one.

    Raises:
        InvalidRequest: an endpoint, but the library is not installed.
    """
    if not endpoint:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise InvalidRequest("spans need `pip install dlite[otel]`", field="otlp_endpoint") from error
    exporter = OTLPSpanExporter(endpoint, insecure=not endpoint.startswith("https://"))
    return Spans(make_provider(BatchSpanProcessor(exporter)), share)
