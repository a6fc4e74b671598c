"""Curves of the tuner as PNG. Pure; matplotlib is imported when something is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from coordinator.plotting import BLUE, GREEN, INK, ORANGE, canvas, png
from coordinator.tuner.explain import Explanation

if TYPE_CHECKING:
    from coordinator.trace.replay import Point


def explanation_png(found: Explanation) -> bytes:
    """Predicted tokens per second over `v`, what was measured, and what was chosen.

    Raises:
        InvalidRequest: matplotlib is not installed.
    """
    figure, (axes,) = canvas()
    sizes = [each.block_size for each in found.sizes]
    axes.plot(sizes, [each.predicted for each in found.sizes], "o-", color=BLUE, label="predicted")
    tried = [(each.block_size, each.measured) for each in found.sizes if each.measured is not None]
    if tried:
        axes.plot(*zip(*tried, strict=True), "s", color=ORANGE, label="measured")
    chosen = found.chosen.block_sizes
    mean = sum(chosen) / max(len(chosen), 1)
    label = f"chosen: v {mean:.2f}, P {found.chosen.num_cohorts}"
    axes.axvline(mean, color=GREEN, linestyle="--", label=label)
    axes.set_xlabel("v, rows that each request verifies (1: plain decoding)")
    axes.set_ylabel("tokens/s, all requests")
    axes.set_xticks(sizes)
    axes.set_ylim(bottom=0)
    axes.set_title(f"{found.num_requests} requests", fontsize=9, loc="left", color=INK)
    axes.legend(fontsize=8, frameon=False)
    return png(figure)


def replay_png(points: Sequence[Point]) -> bytes:
    """What was chosen and what would have been, and tokens per second, on one axis of time.

    Raises:
        InvalidRequest: matplotlib is not installed.
    """
    figure, (top, bottom) = canvas(rows=2)
    seconds = [each.seconds for each in points]
    for values, colour, label in (
        ([each.chosen for each in points], BLUE, "v, as it was"),
        ([each.replayed for each in points], ORANGE, "v, of the replayed tuner"),
    ):
        top.step(seconds, values, where="post", color=colour, label=label)
    for values, colour, label in (
        ([each.measured for each in points], INK, "measured"),
        ([each.predicted_chosen for each in points], BLUE, "predicted, as it was"),
        ([each.predicted_replayed for each in points], ORANGE, "predicted, replayed tuner"),
    ):
        bottom.plot(seconds, values, color=colour, linewidth=1, label=label)
    bottom.set_ylabel("tokens/s")
    bottom.set_xlabel("seconds")
    for axes in (top, bottom):
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=8, frameon=False, ncols=3, loc="lower right")
    return png(figure)
