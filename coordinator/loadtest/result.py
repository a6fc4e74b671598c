"""The figures of a run, by the names that `vllm bench serve` gives them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from coordinator.loadtest.distribution import describe
from coordinator.loadtest.options import METRICS, Shown, Slo
from coordinator.loadtest.runner import Segment
from coordinator.loadtest.samples import Sample, Status
from coordinator.loadtest.sessions import TimeSplit, time_split, whole_sessions
from coordinator.loadtest.speculation import acceptance


@dataclass(frozen=True)
class ArmRun:
    """All segments of one arm at one point."""

    segments: tuple[Segment, ...]

    @property
    def samples(self) -> tuple[Sample, ...]:
        return tuple(sample for segment in self.segments for sample in segment.samples)

    @property
    def duration_seconds(self) -> float:
        return sum(segment.duration_seconds for segment in self.segments)


def arm_result(run: ArmRun, shown: Shown) -> dict[str, Any]:
    """Counts, throughputs, latencies, acceptance and session times of one arm.

    Latencies and tokens are those of successful requests; failed and cancelled ones are counted beside.
    """
    good = [sample for sample in run.samples if sample.is_ok]
    return {
        **_counts(run.samples),
        **_throughput(run, good, shown.slo),
        **_latencies(good, shown.percentiles),
        **_speculative(run.samples),
        "sessions": split_result(time_split(whole_sessions(run.samples))),
    }


def _counts(samples: Sequence[Sample]) -> dict[str, Any]:
    failed = [sample for sample in samples if sample.status is Status.FAILED]
    return {
        "completed": sum(sample.is_ok for sample in samples),
        "failed": len(failed),
        "cancelled": sum(sample.status is Status.CANCELLED for sample in samples),
        "failures_by_reason": dict(Counter(sample.error.partition(":")[0] for sample in failed)),
    }


def _throughput(run: ArmRun, good: Sequence[Sample], slo: Slo) -> dict[str, Any]:
    seconds = run.duration_seconds
    num_input = sum(sample.num_prompt_tokens for sample in good)
    num_output = sum(sample.num_tokens for sample in good)
    num_chunks = sum(len(sample.chunks) for sample in good)
    num_cached = sum(sample.finished.usage.cached_tokens for sample in good)
    num_kept = sum(keeps(sample, slo) for sample in good)
    return {
        "duration": seconds,
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "cached_tokens": num_cached,
        "request_throughput": _per(len(good), seconds),
        "request_goodput": _per(num_kept, seconds) if slo.bounds else None,
        "output_throughput": _per(num_output, seconds),
        "total_token_throughput": _per(num_input + num_output, seconds),
        "max_output_tokens_per_s": float(_peak_tokens(run.segments)),
        "max_concurrent_requests": _peak_requests(run.samples),
        "tokens_per_chunk": _per(num_output, num_chunks),
    }


def _latencies(good: Sequence[Sample], percents: Sequence[float]) -> dict[str, Any]:
    """Milliseconds. ITL is per chunk, TPOT per token."""
    result: dict[str, Any] = {}
    for name, values in {**metric_values(good), "queue": [each.queue_seconds for each in good]}.items():
        found = describe([value * 1e3 for value in values], percents)
        result[f"num_{name}"] = found.num
        result |= {f"{key}_{name}_ms": getattr(found, key) for key in ("mean", "median", "std")}
        for percent, value in zip(percents, found.percentiles, strict=True):
            result[f"p{percent:g}_{name}_ms"] = value
    return result


def metric_values(good: Sequence[Sample]) -> dict[str, list[float]]:
    """Seconds by metric; a request without a value is left out."""
    ttfts = [each.ttft_seconds for each in good]
    tpots = [each.tpot_seconds for each in good]
    found = {
        "ttft": [value for value in ttfts if value is not None],
        "tpot": [value for value in tpots if value is not None],
        "itl": [gap for each in good for gap in each.itl_seconds],
        "e2el": [each.e2el_seconds for each in good],
    }
    assert tuple(found) == METRICS
    return found


def _speculative(samples: Sequence[Sample]) -> dict[str, Any]:
    found = acceptance(samples)
    return {
        "spec_decode_acceptance_rate": None if found.rate is None else 100 * found.rate,
        "spec_decode_acceptance_length": found.mean_length,
        "spec_decode_num_drafts": found.num_drafts,
        "spec_decode_draft_tokens": found.num_verified,
        "spec_decode_accepted_tokens": found.num_accepted,
        "spec_decode_per_position_acceptance_rates": list(found.per_position),
        "spec_decode_wasted_tokens": found.num_drafted - found.num_verified,
        "rounds": found.num_rounds,
        **_round_times(samples),
    }


def _round_times(samples: Sequence[Sample]) -> dict[str, Any]:
    """Milliseconds of a round by where they went, and bytes on the wire for a token."""
    ledgers = [sample.finished.ledger for sample in samples if sample.is_ok]
    num_rounds = sum(each.num_rounds for each in ledgers)
    num_tokens = sum(sample.num_tokens for sample in samples if sample.is_ok)
    sent = sum(each.draft_bytes + each.target_bytes for each in ledgers)
    names = ("draft_ms", "verify_ms", "network_ms", "scheduling_ms")
    return {
        "round_ms": {
            name[:-3]: _per(sum(getattr(each, name) for each in ledgers), num_rounds) for name in names
        },
        "wire_bytes_per_token": _per(sent, num_tokens),
    }


def keeps(sample: Sample, slo: Slo) -> bool:
    """Whether a successful request keeps every bound; a figure it does not have breaks none."""
    values: Mapping[str, float | None] = {
        "ttft": sample.ttft_seconds,
        "tpot": sample.tpot_seconds,
        "e2el": sample.e2el_seconds,
    }
    return all((value := values[name]) is None or value <= bound for name, bound in slo.bounds)


def split_result(split: TimeSplit) -> dict[str, Any]:
    """Seconds summed over whole sessions, and the share of decoding."""
    return {
        "count": split.num_sessions,
        **{
            f"{name}_s": getattr(split, name)
            for name in ("wall", "queue", "prefill", "decode", "tool", "other")
        },
        "decode_share": split.decode_share,
    }


def detailed(samples: Sequence[Sample], start_seconds: float) -> dict[str, Any]:
    """One entry a request, in order of their start; seconds, of the first start's clock."""
    ordered = sorted(samples, key=lambda each: each.started_seconds)
    return {
        "input_lens": [each.num_prompt_tokens for each in ordered],
        "output_lens": [each.num_tokens for each in ordered],
        "ttfts": [each.ttft_seconds for each in ordered],
        "itls": [list(each.itl_seconds) for each in ordered],
        "latencies": [each.e2el_seconds for each in ordered],
        "start_times": [each.started_seconds - start_seconds for each in ordered],
        "queue_times": [each.queue_seconds for each in ordered],
        "generated_texts": [each.text for each in ordered],
        "errors": [each.error for each in ordered],
        "places": [asdict(each.place) for each in ordered],
        "statuses": [each.status.value for each in ordered],
        "tpots": [each.tpot_seconds for each in ordered],
        **_drafting(ordered),
    }


def _drafting(ordered: Sequence[Sample]) -> dict[str, Any]:
    """Per request: acceptance rate, mean k (proposals made) and mean v (rows verified) of a round."""
    usages = [each.finished.usage for each in ordered]
    rounds = [each.finished.ledger.num_draft_rounds for each in ordered]
    pairs = list(zip(usages, rounds, strict=True))
    return {
        "acceptance_rates": [_per(each.accepted_tokens, each.verified_tokens) for each in usages],
        "mean_num_draft_tokens": [_per(each.drafted_tokens, num) for each, num in pairs],
        "mean_verify_block_sizes": [_per(each.verified_tokens + num, num) for each, num in pairs],
    }


def _per(amount: float, units: float) -> float | None:
    return amount / units if units else None


def _peak_tokens(segments: Sequence[Segment]) -> int:
    """Most tokens that came within one second of a segment's clock."""
    buckets: Counter[tuple[int, int]] = Counter()
    for number, segment in enumerate(segments):
        for chunk in (chunk for sample in segment.samples for chunk in sample.chunks):
            buckets[number, int(chunk.seconds - segment.start_seconds)] += chunk.num_tokens
    return max(buckets.values(), default=0)


def _peak_requests(samples: Sequence[Sample]) -> int:
    """Most requests in flight at one moment; an end at the moment of a start comes first."""
    changes = [(each.started_seconds, 1) for each in samples] + [(each.ended_seconds, -1) for each in samples]
    running = peak = 0
    for _, change in sorted(changes):
        running += change
        peak = max(peak, running)
    return peak
