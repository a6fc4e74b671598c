"""The block that `vllm bench serve` prints, with our own sections behind. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coordinator.loadtest.options import Shown

WIDTH = 50
TITLES = {
    "ttft": ("Time to First Token", "TTFT"),
    "tpot": ("Time per Output Token (excl. 1st token)", "TPOT"),
    "itl": ("Inter-token Latency", "ITL"),
    "e2el": ("End-to-end Latency", "E2EL"),
}


def block(result: Mapping[str, Any], shown: Shown) -> str:
    """The text of one result."""
    lines = [
        f"{' Serving Benchmark Result ':=^{WIDTH}}",
        *_totals(result),
        *(line for name in shown.metrics for line in _latency(result, name, shown.percentiles)),
        *_speculative(result),
        *_sessions(result),
        *_comparison(result),
        "=" * WIDTH,
        *(f"warning: {each}" for each in result["warnings"]),
    ]
    return "\n".join(lines)


def sweep_table(results: Sequence[Mapping[str, Any]]) -> str:
    """One line a point."""
    heads = ("rate", "concurrency", "tok/s", "TTFT ms", "TPOT ms", "E2EL ms", "failed", "speed-up")
    rows = [
        (
            result["request_rate"],
            result["max_concurrency"],
            result["output_throughput"],
            result["median_ttft_ms"],
            result["median_tpot_ms"],
            result["median_e2el_ms"],
            result["failed"],
            result.get("speedup", {}).get("output_throughput"),
        )
        for result in results
    ]
    table = [heads, *([_text(value) for value in row] for row in rows)]
    return "\n".join("  ".join(f"{cell:>11}" for cell in row) for row in table)


def _totals(result: Mapping[str, Any]) -> list[str]:
    rows = [
        ("Successful requests", "completed"),
        ("Failed requests", "failed"),
        ("Cancelled requests", "cancelled"),
        ("Maximum request concurrency", "max_concurrency"),
        ("Request rate configured (RPS)", "request_rate"),
        ("Benchmark duration (s)", "duration"),
        ("Total input tokens", "total_input_tokens"),
        ("Cached input tokens", "cached_tokens"),
        ("Total generated tokens", "total_output_tokens"),
        ("Request throughput (req/s)", "request_throughput"),
        ("Request goodput (req/s)", "request_goodput"),
        ("Output token throughput (tok/s)", "output_throughput"),
        ("Peak output token throughput (tok/s)", "max_output_tokens_per_s"),
        ("Peak concurrent requests", "max_concurrent_requests"),
        ("Total token throughput (tok/s)", "total_token_throughput"),
        ("Tokens per chunk", "tokens_per_chunk"),
    ]
    optional = ("max_concurrency", "request_goodput")
    lines = [
        _line(title, result[key]) for title, key in rows if key not in optional or result[key] is not None
    ]
    return lines + [_line(f"  failed: {reason}", num) for reason, num in result["failures_by_reason"].items()]


def _latency(result: Mapping[str, Any], name: str, percents: Sequence[float]) -> list[str]:
    title, short = TITLES[name]
    return [
        f"{title:-^{WIDTH}}",
        _line(f"Mean {short} (ms)", result[f"mean_{name}_ms"]),
        _line(f"Median {short} (ms)", result[f"median_{name}_ms"]),
        *(_line(f"P{each:g} {short} (ms)", result[f"p{each:g}_{name}_ms"]) for each in percents),
    ]


def _speculative(result: Mapping[str, Any]) -> list[str]:
    if not result["spec_decode_num_drafts"]:
        return []
    rates = result["spec_decode_per_position_acceptance_rates"]
    return [
        f"{'Speculative Decoding':-^{WIDTH}}",
        _line("Acceptance rate (%)", result["spec_decode_acceptance_rate"]),
        _line("Acceptance length", result["spec_decode_acceptance_length"]),
        _line("Drafts", result["spec_decode_num_drafts"]),
        _line("Draft tokens", result["spec_decode_draft_tokens"]),
        _line("Accepted tokens", result["spec_decode_accepted_tokens"]),
        _line("Drafted but not verified", result["spec_decode_wasted_tokens"]),
        "Per-position acceptance (%):",
        *(_line(f"  Position {position}", 100 * rate) for position, rate in enumerate(rates)),
        *(_line(f"{name} per round (ms)", value) for name, value in result["round_ms"].items()),
        _line("Wire bytes per token", result["wire_bytes_per_token"]),
        *_categories(result["spec_decode_by_category"]),
    ]


def _categories(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """One line a category: accept length, then acceptance by position."""
    if not found:
        return []
    rows = [
        (name, each["acceptance_length"], [100 * rate for rate in each["per_position_acceptance_rates"]])
        for name, each in found.items()
    ]
    cells = [
        (name, _text(length), " ".join(f"{rate:5.1f}" for rate in rates)) for name, length, rates in rows
    ]
    return [
        "Category: acceptance length, per position (%):",
        *(f"  {a:<22} {b:>6}  {c}" for a, b, c in cells),
    ]


def _sessions(result: Mapping[str, Any]) -> list[str]:
    split = result["sessions"]
    parts = ("queue", "prefill", "decode", "tool", "other")
    if not split["wall_s"]:
        return []
    return [
        f"{'Session wall time':-^{WIDTH}}",
        _line("Whole sessions", split["count"]),
        *(_line(f"{part} (%)", 100 * split[f"{part}_s"] / split["wall_s"]) for part in parts),
    ]


def _comparison(result: Mapping[str, Any]) -> list[str]:
    if "speedup" not in result:
        return []
    speedup, equality, plain = result["speedup"], result["text_equality"], result["baseline"]
    flow = speedup["workflow"]
    return [
        f"{'Against no speculation':-^{WIDTH}}",
        _line("Plain: successful requests", plain["completed"]),
        _line("Plain: failed requests", plain["failed"]),
        _line("Plain: output token throughput (tok/s)", plain["output_throughput"]),
        _line("Speed-up, output throughput", speedup["output_throughput"]),
        _line("Speed-up, TPOT", speedup["tpot"]),
        _line("Speed-up, workflow, predicted", flow["predicted"]),
        _line("Speed-up, workflow, measured", flow["measured"]),
        _line("Equal texts", f"{equality['equal']} of {equality['compared']}"),
    ]


def _line(title: str, value: object) -> str:
    return f"{title + ':':<40} {_text(value):<10}".rstrip()


def _text(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
