"""Where time goes: of rounds, and of sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from coordinator.loadtest.figures import ReportPoint
from coordinator.loadtest.rounds import mean_parts
from coordinator.plotting import BLUE, GREEN, INK, MUTED, ORANGE, RED, TEAL, VIOLET, canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SESSION_PARTS = ("queue", "prefill", "decode", "tool", "other")
ROUND_NAMES = {
    "draft": "T_D, drafter",
    "verify": "T_V, target",
    "draft_network": "T_net, drafter",
    "target_network": "T_net, target",
    "network": "T_net, both links",
    "queue": "queue",
    "scheduling": "T_S, coordinator",
}
ROUND_COLOURS = {
    "draft": BLUE,
    "verify": ORANGE,
    "draft_network": GREEN,
    "target_network": TEAL,
    "network": GREEN,
    "queue": RED,
    "scheduling": VIOLET,
}
SESSION_COLOURS = {"queue": RED, "prefill": BLUE, "decode": ORANGE, "tool": GREEN, "other": "#94a3b8"}
# A part that takes less of the bar has no room for its number.
_LEAST_SHARE = 0.06
_NUMBER: dict[str, Any] = {"va": "center", "fontsize": 7.5, "clip_on": True}


def round_times(points: Sequence[ReportPoint]) -> Figure | None:
    """Six parts from rounds; four from the ledgers where rounds were not told."""
    rows: dict[str, Mapping[str, float]] = {}
    for point in points:
        parts = mean_parts(point.rounds.speculative)
        if not parts and point.result["spec_decode_num_drafts"]:
            parts = {name: value for name, value in point.result["round_ms"].items() if value is not None}
        if parts:
            rows[point.name] = parts
    return _bars(rows, "ms per round", ROUND_NAMES, ROUND_COLOURS)


def session_times(points: Sequence[ReportPoint]) -> Figure | None:
    """Shares, of both arms."""
    rows: dict[str, Mapping[str, float]] = {}
    for point in points:
        for arm, label in ((point.result, ""), (point.result.get("baseline"), ", plain")):
            split = arm["sessions"] if arm else {"wall_s": 0}
            if split["wall_s"]:
                shares = {part: 100 * split[f"{part}_s"] / split["wall_s"] for part in SESSION_PARTS}
                rows[point.name + label] = shares
    return _bars(rows, "share of wall time, %", {part: part for part in SESSION_PARTS}, SESSION_COLOURS)


def _bars(
    rows: Mapping[str, Mapping[str, float]], unit: str, names: Mapping[str, str], colours: Mapping[str, str]
) -> Figure | None:
    if not rows:
        return None
    figure, (axes,) = canvas(row_inches=1.2 + 0.42 * len(rows))
    labels = list(rows)
    begins = [0.0] * len(labels)
    most = max(sum(parts.values()) for parts in rows.values())
    for part in [name for name in names if any(name in parts for parts in rows.values())]:
        lengths = [rows[label].get(part, 0.0) for label in labels]
        axes.barh(labels, lengths, left=begins, height=0.62, color=colours[part], label=names[part])
        for row, (begin, length) in enumerate(zip(begins, lengths, strict=True)):
            if length > _LEAST_SHARE * most:
                middle = begin + length / 2
                axes.text(middle, row, f"{length:.3g}", color="white", ha="center", **_NUMBER)
        begins = [begin + length for begin, length in zip(begins, lengths, strict=True)]
    if unit.startswith("ms"):
        for row, total in enumerate(begins):
            axes.text(total + 0.01 * most, row, f"{total:.3g}", color=INK, **_NUMBER)
    room = 0.9 if len(rows) == 1 else 0.55
    axes.set_ylim(len(rows) - 1 + room, -room)
    axes.grid(visible=False, axis="y")
    axes.set_xlim(0, 1.09 * most if unit.startswith("ms") else max(most, 100))
    axes.set_xlabel(unit, color=MUTED)
    figure.legend(fontsize=7.5, frameon=False, loc="outside upper center", ncols=6)
    return figure
