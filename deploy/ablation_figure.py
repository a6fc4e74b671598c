"""The picture of ablations: tau of every row with its error, a panel for each ablation of each budget."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

_COLUMNS = 3


def draw(result: Mapping[str, Any], file: Path) -> None:
    """Writes a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = [(one, group) for one in result["budgets"] for group in one["groups"]]
    num_lines = -(-max(len(panels), 1) // _COLUMNS)
    figure = Figure(figsize=(5 * _COLUMNS, 2.4 * num_lines), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(num_lines, _COLUMNS, squeeze=False).flatten()
    for place, (one, group) in zip(axes, panels, strict=False):
        rows = one["groups"][group]
        sets = [one["arms"][row["arm"]]["sets"][0] for row in rows]
        taus, errors = [found["tau"] for found in sets], [found["tau_error"] or 0.0 for found in sets]
        place.errorbar(taus, range(len(rows)), xerr=errors, fmt="o", capsize=3)
        place.set_yticks(range(len(rows)), [row["label"] for row in rows])
        place.set_ylim(len(rows) - 0.5, -0.5)
        place.set_title(f"{group}, {one['anchors']} anchors", fontsize=9)
        place.set_xlabel("tau", fontsize=8)
        place.grid(axis="x", alpha=0.3)
    for place in axes[len(panels) :]:
        place.set_axis_off()
    figure.savefig(file, dpi=110)
