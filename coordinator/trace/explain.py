"""What a tuner believes and what a replay gave: for people, as JSON, from the wire. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from coordinator.trace.replay import Point, Replay, thinned
from coordinator.tuner.choose import Choice
from coordinator.tuner.explain import Explanation, FixedSize
from protos import coordinator_pb2 as pb

MOST_LINES = 40
# Mean sizes that differ by less are the same choice.
_SAME_SIZE = 0.5
NOTHING = "no plan yet: no request has run"


def explanation_from(message: pb.ExplainTunerResponse) -> Explanation | None:
    """None when the tuner has no plan yet."""
    if not message.has_plan:
        return None
    return Explanation(
        num_requests=message.num_requests,
        acceptance=tuple(message.acceptance),
        sizes=tuple(
            FixedSize(
                each.block_size,
                each.num_cohorts,
                each.predicted,
                each.measured if each.HasField("measured") else None,
            )
            for each in message.sizes
        ),
        chosen=Choice(tuple(message.chosen_sizes), message.num_cohorts, message.tokens_per_second),
        is_kept=message.is_kept,
    )


def explanation_json(found: Explanation | None) -> dict[str, Any]:
    """With `has_plan`, and everything else only where there is one."""
    if found is None:
        return {"has_plan": False}
    return {"has_plan": True, **asdict(found)}


def replay_json(found: Replay) -> dict[str, Any]:
    """All points, the summary, and what the tuner believes at the end."""
    return {
        "points": [asdict(point) for point in found.points],
        "summary": summary(found.points),
        "explanation": explanation_json(found.explanation),
    }


def summary(points: Sequence[Point]) -> dict[str, Any]:
    """Shares and means over all points; None without any.

    `same_choice`: share of points with the same mean `v` and P. `gain`: of this tuner's choice over what
    was done, by its own predictions. `prediction_error`: median of |measured / predicted - 1| of what was
    done, by this tuner and as it was told when it was chosen.
    """
    if not points:
        return {"points": 0, "same_choice": None, "gain": None, "prediction_error": None, "told_error": None}
    same = [
        abs(each.chosen - each.replayed) < _SAME_SIZE and each.chosen_cohorts == each.replayed_cohorts
        for each in points
    ]
    gains = [each.predicted_replayed / each.predicted_chosen for each in points if each.predicted_chosen]
    return {
        "points": len(points),
        "same_choice": sum(same) / len(points),
        "gain": statistics.fmean(gains) - 1.0 if gains else None,
        "prediction_error": _error([(each.measured, each.predicted_chosen) for each in points]),
        "told_error": _error([(each.measured, each.told) for each in points]),
    }


def _error(pairs: Sequence[tuple[float, float]]) -> float | None:
    errors = [abs(measured / predicted - 1.0) for measured, predicted in pairs if predicted and measured]
    return statistics.median(errors) if errors else None


def replay_lines(found: Replay) -> tuple[str, ...]:
    """A table of at most `MOST_LINES` points, and the summary."""
    head = (
        f"{'seconds':>8} {'requests':>8} | {'v':>5} {'P':>2} {'told':>8} | "
        f"{'replayed v':>10} {'P':>2} | {'predicted':>9} {'of it':>8} {'measured':>8}"
    )
    rows = [
        f"{each.seconds:8.2f} {each.num_requests:8d} | {each.chosen:5.2f} {each.chosen_cohorts:2d} "
        f"{_rate(each.told)} | {each.replayed:10.2f} {each.replayed_cohorts:2d} | "
        f"{each.predicted_chosen:9.1f} {each.predicted_replayed:8.1f} {each.measured:8.1f}"
        for each in thinned(found.points, MOST_LINES)
    ]
    note = (
        "v, P, told: what was done, and the tokens/s predicted then; predicted: by the replayed tuner, of",
        "what was done; of it: of its own choice; measured: tokens/s from there on.",
    )
    return (head, *rows, *note, *_summary_lines(summary(found.points)))


def _summary_lines(found: dict[str, Any]) -> tuple[str, ...]:
    if not found["points"]:
        return ("no points",)
    return (
        f"{found['points']} points; the same choice at {_share(found['same_choice'])}; its own choices are "
        f"worth {_share(found['gain'])} more by its own predictions;",
        f"prediction error (median): replayed {_share(found['prediction_error'])}, "
        f"as told {_share(found['told_error'])}",
    )


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _rate(value: float) -> str:
    return f"{value:8.1f}" if value else f"{'-':>8}"
