"""How figures look, here and in the report. matplotlib is imported when something is drawn."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from protos.errors import InvalidRequest

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT, MUTED = "#1f2933", "#e3e8ee", "#52606d"
BLUE, ORANGE, GREEN, RED, VIOLET, TEAL = "#2563eb", "#d97706", "#059669", "#b91c1c", "#7c3aed", "#0e7490"
COLOURS = (BLUE, ORANGE, GREEN, RED, VIOLET, TEAL, "#be185d", "#4d7c0f")
WIDTH_INCHES, ROW_INCHES, LONE_INCHES = 8.4, 1.9, 3.4


def canvas(rows: int = 1, columns: int = 1, row_inches: float | None = None) -> tuple[Figure, list[Axes]]:
    """An empty figure; panels of one column share their axis x.

    Raises:
        InvalidRequest: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure as NewFigure
    except ImportError as error:
        raise InvalidRequest(
            "figures need matplotlib: pip install dlite[models]", field="--report"
        ) from error
    height = (row_inches or (LONE_INCHES if rows == 1 else ROW_INCHES)) * rows
    figure = NewFigure(figsize=(WIDTH_INCHES, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharex="col" if rows > 1 else False)
    for each in axes.flat:
        each.spines[["top", "right"]].set_visible(False)
        each.spines[["left", "bottom"]].set_color(MUTED)
        each.grid(color=FAINT, linewidth=0.6)
        each.set_axisbelow(True)
        each.tick_params(labelsize=8, colors=INK)
        each.xaxis.label.set_size(8.5)
        each.yaxis.label.set_size(8.5)
    return figure, list(axes.flat)


def png(figure: Figure) -> bytes:
    """The figure as a PNG, twice as fine as screens were."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160)
    return buffer.getvalue()
