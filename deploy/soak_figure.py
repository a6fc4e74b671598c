"""A soak at a glance: memory by process, texts and pages, requests, and when something was killed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coordinator.plotting import COLOURS, MUTED, canvas, png

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def write(result: dict[str, Any]) -> bytes:
    """The PNG of a record of `run_soak`."""
    moments = result["moments"]
    minutes = [moment["seconds"] / 60 for moment in moments]
    figure, (memory, load, requests) = canvas(rows=3)
    for name, colour in zip(moments[0]["memory"], COLOURS, strict=False):
        values = [moment["memory"][name] or float("nan") for moment in moments]
        style = "-" if name.endswith("-1") else ":"
        memory.plot(minutes, values, style, color=colour, label=name, linewidth=1.2)
    memory.set_ylabel("memory, MiB")
    memory.set_ylim(bottom=0)
    memory.legend(fontsize=7, ncols=3, frameon=False)
    load.plot(minutes, [moment["num_running"] for moment in moments], color=COLOURS[0], label="texts")
    load.plot(minutes, [moment["pages_held"] for moment in moments], color=COLOURS[1], label="pages held")
    load.set_ylabel("at a time")
    load.legend(fontsize=7, ncols=2, frameon=False)
    requests.plot(minutes, [moment["num_done"] for moment in moments], color=COLOURS[2])
    requests.set_ylabel("requests done")
    requests.set_xlabel("minutes; grey lines: a replica is killed or stopped")
    for axes in (memory, load, requests):
        _mark(axes, [fault["seconds"] / 60 for fault in result["faults"]])
    return png(figure)


def _mark(axes: Axes, minutes: list[float]) -> None:
    for at in minutes:
        axes.axvline(at, color=MUTED, linewidth=0.6, alpha=0.5)
