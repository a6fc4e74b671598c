"""Distributions of latency, of both arms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from coordinator.loadtest.figures import ReportPoint
from coordinator.plotting import COLOURS, canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = (
    ("ttfts", "TTFT, ms"),
    ("tpots", "TPOT, ms"),
    ("itls", "ITL per chunk, ms"),
    ("latencies", "E2EL, ms"),
)
# So many times from the median to the slowest, and a straight axis shows nothing but the tail.
_WIDE = 20.0
Line = Literal["-", "--"]
_WHOLE: Line = "-"
_DASHED: Line = "--"


def latency(points: Sequence[ReportPoint]) -> Figure | None:
    """A panel for each latency; None when no request succeeded."""
    if not any(point.result["completed"] for point in points):
        return None
    figure, panels = canvas(rows=1, columns=len(PANELS), row_inches=2.9)
    for axes, (key, label) in zip(panels, PANELS, strict=True):
        shown: list[float] = []
        for number, point in enumerate(points):
            colour = COLOURS[number % len(COLOURS)]
            shown += _steps(axes, point.result, key, (colour, _WHOLE, point.name))
            plain = point.result.get("baseline_details")
            if plain:
                shown += _steps(axes, plain, key, (colour, _DASHED, f"{point.name}, plain"))
        _scale(axes, shown)
        axes.set_xlabel(label)
        axes.set_ylim(0, 103)
        axes.tick_params(labelleft=axes is panels[0])
    panels[0].set_ylabel("requests, %")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=7.5, frameon=False, loc="outside lower center", ncols=2)
    return figure


def _steps(axes: Axes, details: Mapping[str, Any], key: str, style: tuple[str, Line, str]) -> list[float]:
    """Draws one line; returns its values in ms."""
    colour, line, label = style
    good = [value for value, status in zip(details[key], details["statuses"], strict=True) if status == "ok"]
    flat = [gap for gaps in good for gap in gaps] if key == "itls" else [v for v in good if v is not None]
    values = sorted(1e3 * value for value in flat)
    shares = [100 * (rank + 1) / len(values) for rank in range(len(values))]
    if values:
        (drawn,) = axes.step([values[0], *values], [0, *shares], where="post", color=colour, linewidth=1.3)
        drawn.set_linestyle(line)
        drawn.set_label(label)
    return values


def _scale(axes: Axes, values: list[float]) -> None:
    values.sort()
    if values and values[0] > 0 and values[-1] > _WIDE * values[len(values) // 2]:
        axes.set_xscale("log")
    elif values:
        axes.set_xlim(0, 1.08 * values[-1] or 1.0)
