"""The object that a load test prints and saves. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from coordinator.loadtest.comparison import Equality, compare_texts
from coordinator.loadtest.execution import Job, PointRun
from coordinator.loadtest.options import Shown
from coordinator.loadtest.result import arm_result, detailed
from coordinator.loadtest.sessions import workflow
from coordinator.loadtest.speculation import by_category
from coordinator.loadtest.warmth import warmth

BACKEND = "dlite-grpc"
SHOWN_DIFFERENCES = 10


@dataclass(frozen=True)
class Heading:
    """What a result says about its run besides figures."""

    date: datetime
    model_id: str
    tokenizer_id: str
    label: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def point_result(run: PointRun, job: Job, heading: Heading, shown: Shown) -> dict[str, Any]:
    """Everything about one point, except each single request (`details`)."""
    temperature_is_zero = job.fields.get("temperature") == 0
    result: dict[str, Any] = {
        **heading.metadata,
        "date": heading.date.strftime("%Y%m%d-%H%M%S"),
        "backend": BACKEND,
        "label": heading.label,
        "model_id": heading.model_id,
        "tokenizer_id": heading.tokenizer_id,
        "num_prompts": job.data.num_prompts,
        "dataset": job.data.name,
        "request_rate": run.point.rate if math.isfinite(run.point.rate) else "inf",
        "burstiness": job.burstiness if math.isfinite(job.burstiness) else "inf",
        "ramp": asdict(job.ramp) if job.ramp else None,
        "max_concurrency": run.point.concurrency,
        "seed": job.seed,
        **arm_result(run.speculative, shown),
        "spec_decode_by_category": _by_category(run),
        "unsent": run.num_unsent,
        "warnings": [*heading.warnings, *_warnings(run)],
    }
    if run.plain is not None:
        result["baseline"] = arm_result(run.plain, shown)
        result["speedup"] = _speedup(result, run)
        equality = compare_texts(run.speculative.samples, run.plain.samples)
        result["text_equality"] = _equality(equality, temperature_is_zero)
    return result


def details(run: PointRun) -> dict[str, Any]:
    """Each single request; those of the plain arm under `baseline_details`."""
    found = detailed(run.speculative.samples, run.first.start_seconds)
    if run.plain is not None:
        found["baseline_details"] = detailed(run.plain.samples, run.first.start_seconds)
    return found


def exit_code(results: Sequence[Mapping[str, Any]], max_failed: int) -> int:
    """1 when nothing succeeded, no token came, too many failed, or texts differ that may not; else 0."""
    for result in results:
        arms = [result, *([result["baseline"]] if "baseline" in result else [])]
        if any(not arm["completed"] or not arm["total_output_tokens"] for arm in arms):
            return 1
        if sum(arm["failed"] for arm in arms) > max_failed:
            return 1
        if not result.get("text_equality", {}).get("holds", True):
            return 1
    return 0


def _warnings(run: PointRun) -> list[str]:
    found = warmth(run.first.samples)
    warnings = [found.warning] if found.is_warm else []
    if run.num_unsent:
        warnings.append(f"{run.num_unsent} requests were not sent: no time left, or their session had failed")
    return warnings


def _by_category(run: PointRun) -> dict[str, dict[str, Any]]:
    """Acceptance by the data set's categories; empty when it names none."""
    found = by_category(run.speculative.samples, run.categories)
    return {
        name: {
            "acceptance_rate": None if each.rate is None else 100 * each.rate,
            "acceptance_length": each.mean_length,
            "num_drafts": each.num_drafts,
            "per_position_acceptance_rates": list(each.per_position),
        }
        for name, each in found.items()
    }


def _speedup(result: Mapping[str, Any], run: PointRun) -> dict[str, Any]:
    """Above 1: speculation is faster. `workflow` compares whole sessions."""
    plain = result["baseline"]
    assert run.plain is not None
    return {
        "output_throughput": _ratio(result["output_throughput"], plain["output_throughput"]),
        "tpot": _ratio(plain["mean_tpot_ms"], result["mean_tpot_ms"]),
        "ttft": _ratio(plain["mean_ttft_ms"], result["mean_ttft_ms"]),
        "e2el": _ratio(plain["mean_e2el_ms"], result["mean_e2el_ms"]),
        "workflow": asdict(workflow(run.speculative.samples, run.plain.samples)),
    }


def _equality(equality: Equality, must_hold: bool) -> dict[str, Any]:
    """`holds` is False only where texts must be equal (temperature 0) and no near-tie may explain it."""
    unexplained = [each for each in equality.differences if not each.may_be_near_tie]
    return {
        "compared": equality.num_compared,
        "equal": equality.num_equal,
        "different": len(equality.differences),
        "holds": not (must_hold and unexplained),
        "first_differences": [asdict(each) for each in equality.differences[:SHOWN_DIFFERENCES]],
    }


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None
