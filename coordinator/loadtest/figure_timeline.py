"""The figure that tuning is judged by: accept rate, v and k, and speed-up on one axis of time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from coordinator.loadtest.figures import ReportPoint
from coordinator.loadtest.rounds import Bin, PointRounds, bins, seconds_per_token, start_of
from coordinator.plotting import BLUE, GREEN, INK, MUTED, ORANGE, RED, canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NUM_BINS = 120
_LEAST_BIN_SECONDS = 0.05
_GAP_SECONDS = 0.5


def timeline(points: Sequence[ReportPoint]) -> Figure | None:
    """By rounds where they were told, else by requests; None without any proposal."""
    if any(point.rounds.has_any for point in points):
        return _by_rounds(points)
    return _by_requests(points)


def _by_rounds(points: Sequence[ReportPoint]) -> Figure | None:
    told = [point for point in points if point.rounds.speculative]
    if not any(record.num_verified for point in told for record in point.rounds.speculative):
        return None
    figure, panels = canvas(rows=3)
    top, middle, bottom = panels
    total = sum(point.rounds.end - point.rounds.begin for point in told)
    begin, has_plain = 0.0, any(point.rounds.plain for point in told)
    for point in told:
        rounds, shift = point.rounds, begin - point.rounds.begin
        length = rounds.end - rounds.begin
        num_bins = max(min(round(NUM_BINS * length / total), int(length / _LEAST_BIN_SECONDS)), 4)
        found = bins(rounds.speculative, rounds.begin, rounds.end, num_bins)
        _curve(top, found, shift, [each.acceptance for each in found], (BLUE, "accept rate"))
        _curve(middle, found, shift, [each.num_drafted for each in found], (GREEN, "k, proposals drafted"))
        _curve(middle, found, shift, [each.block_size for each in found], (ORANGE, "v, rows verified"))
        _pace(bottom, found, rounds, shift, has_plain)
        _shade_plain(panels, rounds, shift)
        if len(told) > 1:
            _name_point(panels, begin, point.name, is_first=point is told[0])
        begin += length + (_GAP_SECONDS if len(told) > 1 else 0.0)
    bottom.set_ylabel("speed-up of a token" if has_plain else "tokens/s")
    _finish(panels, has_plain)
    return figure


def _pace(axes: Axes, found: Sequence[Bin], rounds: PointRounds, shift: float, has_plain: bool) -> None:
    """Speed-up of a token's time over the plain arm's; without one, tokens per second."""
    plain = seconds_per_token(rounds.plain)
    if not has_plain:
        _curve(
            axes, found, shift, [each.tokens_per_second for each in found], (RED, "tokens/s, all requests")
        )
    elif plain is not None:
        values = [plain / each.seconds_per_token if each.seconds_per_token else None for each in found]
        _curve(axes, found, shift, values, (RED, "speed-up, time of a token"))


def _curve(
    axes: Axes,
    found: Sequence[Bin],
    shift: float,
    values: Sequence[float | None],
    style: tuple[str, str],
) -> None:
    """A line, broken where there is nothing to tell. Points of a sweep share an entry in the legend."""
    colour, label = style
    known = axes.get_legend_handles_labels()[1]
    axes.plot(
        [each.middle + shift for each in found],
        [float("nan") if value is None else value for value in values],
        color=colour,
        linewidth=1.4,
        marker=".",
        markersize=3,
        label=None if label in known else label,
    )


def _shade_plain(panels: Sequence[Axes], rounds: PointRounds, shift: float) -> None:
    """Where only the plain arm ran."""
    starts = [(start_of(each), "plain") for each in rounds.plain]
    starts += [(start_of(each), "speculative") for each in rounds.speculative]
    stretches = [
        (arm, [start for start, _ in group]) for arm, group in groupby(sorted(starts), lambda x: x[1])
    ]
    for number, (arm, times) in enumerate(stretches):
        if arm == "plain":
            end = stretches[number + 1][1][0] if number + 1 < len(stretches) else rounds.end
            for axes in panels:
                axes.axvspan(times[0] + shift, end + shift, color=INK, alpha=0.06, linewidth=0)


def _name_point(panels: Sequence[Axes], begin: float, name: str, is_first: bool) -> None:
    if not is_first:
        for axes in panels:
            axes.axvline(begin - _GAP_SECONDS / 2, color=MUTED, linewidth=0.8)
    panels[0].annotate(
        name,
        (begin, 1.04),
        xycoords=("data", "axes fraction"),
        fontsize=7.5,
        color=MUTED,
        annotation_clip=False,
    )


def _by_requests(points: Sequence[ReportPoint]) -> Figure | None:
    """A dot is a request."""
    results = [point.result for point in points]
    if not any(rate is not None for each in results for rate in each["acceptance_rates"]):
        return None
    figure, panels = canvas(rows=3)
    top, middle, bottom = panels
    begin = 0.0
    for result in results:
        times = [begin + seconds for seconds in result["start_times"]]
        _dots(top, times, result["acceptance_rates"], (BLUE, "accept rate"))
        _dots(middle, times, result["mean_num_draft_tokens"], (GREEN, "k, proposals drafted"))
        _dots(middle, times, result["mean_verify_block_sizes"], (ORANGE, "v, rows verified"))
        plain = result.get("baseline", {}).get("mean_tpot_ms")
        speedups = [plain / 1e3 / each if plain and each else None for each in result["tpots"]]
        _dots(bottom, times, speedups, (RED, "speed-up, TPOT of a request"))
        begin = max(times, default=begin) + _GAP_SECONDS
    has_plain = any("baseline" in result for result in results)
    bottom.set_ylabel("speed-up, TPOT")
    if not has_plain:
        bottom.remove()
        middle.tick_params(labelbottom=True)
        panels = panels[:2]
    _finish(panels, has_plain)
    return figure


def _dots(axes: Axes, times: Sequence[float], values: Sequence[float | None], style: tuple[str, str]) -> None:
    colour, label = style
    pairs = [(time, value) for time, value in zip(times, values, strict=True) if value is not None]
    if pairs:
        name = None if label in axes.get_legend_handles_labels()[1] else label
        axes.plot(*zip(*pairs, strict=True), "o", markersize=3.5, alpha=0.75, color=colour, label=name)


def _finish(panels: Sequence[Axes], has_plain: bool) -> None:
    panels[0].set_ylim(-0.05, 1.05)
    panels[0].set_ylabel("accept rate")
    panels[1].set_ylabel("tokens")
    panels[1].set_ylim(0, max(1.35 * panels[1].get_ylim()[1], 2.0))
    if len(panels) > 2:
        panels[2].set_ylim(0, 1.15 * panels[2].get_ylim()[1])
        if has_plain:
            panels[2].axhline(1.0, color=INK, linewidth=0.9, linestyle="--")
    panels[-1].set_xlabel("seconds")
    panels[1].legend(fontsize=7.5, loc="upper left", ncols=2, framealpha=0.85, edgecolor="none")
