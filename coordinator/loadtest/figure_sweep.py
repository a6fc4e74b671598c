"""Curves over the points of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from coordinator.loadtest.figures import ReportPoint
from coordinator.plotting import BLUE, GREEN, INK, MUTED, ORANGE, canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LATENCIES = (("median_ttft_ms", "TTFT p50, ms"), ("median_tpot_ms", "TPOT p50, ms"))


def sweep(points: Sequence[ReportPoint]) -> Figure | None:
    """Throughput, two latencies and (with a plain arm) speed-up; None for a single point."""
    if len(points) < 2:
        return None
    results = [point.result for point in points]
    has_plain = all("baseline" in result for result in results)
    panels = 4 if has_plain else 3
    figure, axes = canvas(columns=panels, row_inches=2.7)
    labels, title = _axis(results)
    arms = [("speculative", results, BLUE)]
    if has_plain:
        arms.append(("plain", [result["baseline"] for result in results], ORANGE))
    for label, rows, colour in arms:
        _line(axes[0], labels, [row["output_throughput"] for row in rows], (colour, label))
        for panel, (key, _) in zip(axes[1:], LATENCIES, strict=False):
            _line(panel, labels, [row[key] for row in rows], (colour, label))
    axes[0].set_title("tokens/s", fontsize=8.5)
    for panel, (_, name) in zip(axes[1:], LATENCIES, strict=False):
        panel.set_title(name, fontsize=8.5)
    if has_plain:
        for key, colour in (("output_throughput", BLUE), ("tpot", GREEN)):
            label = "throughput" if key == "output_throughput" else "TPOT"
            _line(axes[3], labels, [result["speedup"][key] for result in results], (colour, label))
        axes[3].axhline(1.0, color=INK, linewidth=0.9, linestyle="--")
        axes[3].set_title("speed-up", fontsize=8.5)
    for panel in axes:
        panel.set_xticks(range(len(labels)), labels)
        panel.set_ylim(0, 1.18 * panel.get_ylim()[1])
        panel.set_xlabel(title, color=MUTED)
        panel.margins(x=0.12)
    for panel in (axes[0], *axes[3:]):
        panel.legend(fontsize=7, frameon=False, loc="lower right")
    return figure


def _axis(results: Sequence[Mapping[str, Any]]) -> tuple[list[str], str]:
    """Ticks, and what they are: only what differs between the points."""
    rates = [str(result["request_rate"]) for result in results]
    limits = [
        "-" if result["max_concurrency"] is None else str(result["max_concurrency"]) for result in results
    ]
    if len(set(rates)) == 1:
        return limits, "sessions at once"
    if len(set(limits)) == 1:
        return rates, "sessions/s"
    return [f"{rate}/s\n{limit}" for rate, limit in zip(rates, limits, strict=True)], "sessions/s, at once"


def _line(axes: Axes, labels: list[str], values: Sequence[float | None], style: tuple[str, str]) -> None:
    colour, label = style
    shown = [float("nan") if value is None else value for value in values]
    axes.plot(range(len(labels)), shown, "o-", markersize=4, linewidth=1.4, color=colour, label=label)
