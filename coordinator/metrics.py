"""Counters and histograms of a coordinator, in Prometheus' form, under vLLM's names where one exists.

Everything about a text is counted once, when it has ended, from its Finished message: so the counters
are the sums of the usage that clients were told. Labels are bounded: model, reason, position, part,
link; never a request, session or prompt.
"""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram

from protos import coordinator_pb2
from protos.common_pb2 import FinishReason

MODEL = "model_name"
# Of a replica.
ADDRESS = "address"
REASONS = ("stop", "length", "tool_calls", "abort", "error")
PARTS = ("draft", "verify", "network", "scheduling")
WIRE = ("draft", "target", "features")
KINDS = ("drafter", "lookup", "run")

# Seconds; vLLM's own, so that its dashboards fit.
FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
REQUEST_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)


def reason_name(reason: FinishReason) -> str:
    """FINISH_REASON_STOP -> stop."""
    return FinishReason.Name(reason).removeprefix("FINISH_REASON_").lower()


class Metrics:
    """What one coordinator has done since it started.

    Args:
        model: the value of the label `model_name`.
        max_positions: most proposals of a round; bounds the label `position`.
    """

    def __init__(self, model: str, max_positions: int) -> None:
        self.registry = CollectorRegistry()
        self.model = model
        self._max_positions = max_positions
        self._texts = _Texts(self)
        self._speculation = _Speculation(self)
        self._rounds = _Rounds(self)
        self._refused = self.counter("dlite_requests_refused", "Requests refused, by reason.", "reason")

    def observe(self, finished: coordinator_pb2.Finished, seconds: float) -> None:
        """Counts a text that has ended.

        Args:
            finished: as its client gets it.
            seconds: since its request arrived.
        """
        self._texts.observe(finished, seconds)
        self._speculation.observe(finished, self._max_positions)
        self._rounds.observe(finished.ledger)

    def note_refused(self, reason: str) -> None:
        """Counts a request that was not admitted; `reason` is a class of `protos.errors`."""
        self._refused.labels(self.model, reason).inc()

    def counter(self, name: str, help_text: str, label: str = "", values: Sequence[str] = ()) -> Counter:
        """A counter whose series are there from the start."""
        labels = [MODEL, label] if label else [MODEL]
        counter = Counter(name, help_text, labels, registry=self.registry)
        for value in values if label else [""]:
            counter.labels(*([self.model, value] if label else [self.model]))
        return counter

    def histogram(self, name: str, help_text: str, buckets: Sequence[float]) -> Histogram:
        """The one series of a histogram."""
        histogram = Histogram(name, help_text, [MODEL], registry=self.registry, buckets=buckets)
        series: Histogram = histogram.labels(self.model)
        return series

    def only(self, counter: Counter) -> Counter:
        """The one series of a counter without a label of its own."""
        series: Counter = counter.labels(self.model)
        return series

    def of(self, counter: Counter, value: str) -> Counter:
        """The series of one label value."""
        series: Counter = counter.labels(self.model, value)
        return series


class _Texts:
    """Tokens and times of texts."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        counter, histogram = metrics.counter, metrics.histogram
        self._ended = counter("vllm:request_success", "Texts ended.", "finished_reason", REASONS)
        self._prompt = metrics.only(counter("vllm:prompt_tokens", "Prompt tokens, once for each request."))
        self._generated = metrics.only(counter("vllm:generation_tokens", "Tokens of texts."))
        self._queries = metrics.only(counter("vllm:prefix_cache_queries", "Prompt tokens looked up."))
        self._hits = metrics.only(counter("vllm:prefix_cache_hits", "Prompt tokens found."))
        self._recomputed = metrics.only(
            counter("dlite_recomputed_tokens", "Tokens computed again after an eviction or a lost target.")
        )
        self._first = histogram(
            "vllm:time_to_first_token_seconds", "From arrival to the first token.", FIRST_TOKEN_BUCKETS
        )
        self._token = histogram(
            "vllm:request_time_per_output_token_seconds", "Mean after the first token.", TOKEN_BUCKETS
        )
        self._whole = histogram("vllm:e2e_request_latency_seconds", "From arrival to end.", REQUEST_BUCKETS)
        self._queue = histogram("vllm:request_queue_time_seconds", "Waiting to start.", REQUEST_BUCKETS)
        self._prefill = histogram("vllm:request_prefill_time_seconds", "The prompt.", REQUEST_BUCKETS)
        self._decode = histogram("vllm:request_decode_time_seconds", "After the prompt.", REQUEST_BUCKETS)

    def observe(self, finished: coordinator_pb2.Finished, seconds: float) -> None:
        usage = finished.usage
        self._metrics.of(self._ended, reason_name(finished.finish_reason)).inc()
        self._prompt.inc(usage.prompt_tokens)
        self._generated.inc(usage.completion_tokens)
        self._queries.inc(usage.prompt_tokens)
        self._hits.inc(usage.cached_tokens)
        self._recomputed.inc(usage.recomputed_tokens)
        self._whole.observe(seconds)
        if not usage.completion_tokens:
            return
        self._first.observe((usage.queue_ms + usage.prefill_ms) / 1e3)
        self._queue.observe(usage.queue_ms / 1e3)
        self._prefill.observe(usage.prefill_ms / 1e3)
        self._decode.observe(usage.decode_ms / 1e3)
        if usage.completion_tokens > 1:
            self._token.observe(usage.decode_ms / 1e3 / (usage.completion_tokens - 1))


class _Speculation:
    """Drafts: `num_draft_tokens` are those that were verified, so accepted / drafted is the rate."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        counter, only = metrics.counter, metrics.only
        self._rounds = only(counter("vllm:spec_decode_num_drafts", "Rounds with proposals."))
        self._verified = only(counter("vllm:spec_decode_num_draft_tokens", "Proposals verified."))
        self._accepted = only(counter("vllm:spec_decode_num_accepted_tokens", "Proposals accepted."))
        self._accepted_at = counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos", "Proposals accepted, by place.", "position"
        )
        self._verified_at = counter(
            "dlite_verified_tokens_per_pos", "Proposals verified, by place.", "position"
        )
        self._drafted = only(counter("dlite_drafted_tokens", "Proposals made, also those not verified."))

    def observe(self, finished: coordinator_pb2.Finished, max_positions: int) -> None:
        usage, ledger = finished.usage, finished.ledger
        self._rounds.inc(ledger.num_draft_rounds)
        self._drafted.inc(usage.drafted_tokens)
        self._verified.inc(usage.verified_tokens)
        self._accepted.inc(usage.accepted_tokens)
        for counter, counts in (
            (self._accepted_at, ledger.accepted_per_position),
            (self._verified_at, ledger.verified_per_position),
        ):
            for position, count in enumerate(counts[:max_positions]):
                self._metrics.of(counter, str(position)).inc(count)


class _Rounds:
    """What rounds did, and where their time and bytes went."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        counter = metrics.counter
        self._kinds = counter("dlite_rounds", "Rounds by where proposals came from.", "kind", KINDS)
        self._run_tokens = metrics.only(counter("dlite_run_tokens", "Tokens decoded by the target alone."))
        self._undrafted = metrics.only(
            counter("dlite_undrafted_rounds", "Rounds for which the drafter was asked in vain.")
        )
        self._reopens = metrics.only(
            counter("dlite_reopens", "Texts opened again at a target that lost them.")
        )
        self._seconds = counter("dlite_round_seconds", "Time of rounds by part.", "part", PARTS)
        self._bytes = counter(
            "dlite_wire_bytes", "Bytes to and from each service, and features.", "link", WIRE
        )

    def observe(self, ledger: coordinator_pb2.Ledger) -> None:
        of = self._metrics.of
        num_drafter = ledger.num_draft_rounds - ledger.num_lookup_rounds
        num_run = ledger.num_rounds - ledger.num_draft_rounds
        for kind, count in zip(KINDS, (num_drafter, ledger.num_lookup_rounds, num_run), strict=True):
            of(self._kinds, kind).inc(max(count, 0))
        self._run_tokens.inc(ledger.num_run_tokens)
        self._undrafted.inc(ledger.num_undrafted_rounds)
        self._reopens.inc(ledger.num_reopens)
        for part in PARTS:
            of(self._seconds, part).inc(getattr(ledger, f"{part}_ms") / 1e3)
        for link, count in zip(
            WIRE, (ledger.draft_bytes, ledger.target_bytes, ledger.feature_bytes), strict=True
        ):
            of(self._bytes, link).inc(count)
