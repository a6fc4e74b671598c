"""Scores of an evaluation as a table and as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table


def as_table(found: Mapping[str, Any]) -> Table:
    """One row a set (traces by context) and temperature: tau, then conditional acceptance of each proposal.
    With seven proposals it fits 80 columns."""
    title = f"{found['drafter']}, {found['num_draft_tokens']} proposals a round"
    table = Table(title=title, box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("set", "T", "texts", "rounds", "tau"):
        table.add_column(heading, justify="left" if heading == "set" else "right", no_wrap=True)
    for j in range(1, found["num_draft_tokens"] + 1):
        table.add_column(f"a{j}", justify="right")
    for one in found["scores"]:
        cells = [one["name"], f"{one['temperature']:g}", str(one["num_texts"])]
        cells.append(str(one["num_rounds"]))
        table.add_row(*cells, *(_cell(value) for value in (one["tau"], *one["conditional"])))
    return table


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _ink(share: float) -> str:
    """Readable on viridis."""
    return "black" if share > 0.65 else "white"


def draw(found: Mapping[str, Any], file: Path) -> None:
    """A matrix of conditional acceptance: one row for each set and temperature, one column a proposal."""
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    scores = found["scores"]
    values = np.array([[np.nan if v is None else v for v in one["conditional"]] for one in scores])
    figure = Figure(figsize=(4 + 0.7 * values.shape[1], 1.2 + 0.35 * len(scores)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    image = axes.imshow(values, vmin=0.0, vmax=1.0, cmap="viridis", aspect="auto")
    axes.set_xticks(range(values.shape[1]), [f"a{j}" for j in range(1, values.shape[1] + 1)])
    labels = [f"{one['name']}  T={one['temperature']:g}  tau {_cell(one['tau'])}" for one in scores]
    axes.set_yticks(range(len(scores)), labels)
    for row, column in np.ndindex(*values.shape):
        if not np.isnan(values[row, column]):
            text = f"{values[row, column]:.2f}"
            axes.text(
                column,
                row,
                text,
                ha="center",
                va="center",
                fontsize=8,
                color=_ink(float(values[row, column])),
            )
    axes.set_title(f"conditional acceptance, {found['drafter']}")
    figure.colorbar(image)
    figure.savefig(file, dpi=120)
