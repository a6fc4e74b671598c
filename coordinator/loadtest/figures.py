"""Figures of a load test. Pure: from results to matplotlib figures, without a display."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from protos.errors import InvalidRequest

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT = "#1f2933", "#d9dfe5"
COLOURS = ("#2563eb", "#d97706", "#059669", "#b91c1c", "#7c3aed")
ROUND_PARTS = ("draft", "verify", "network", "scheduling")
SESSION_PARTS = ("queue", "prefill", "decode", "tool", "other")
WIDTH_INCHES, HEIGHT_INCHES = 7.2, 3.4


@dataclass(frozen=True)
class Picture:
    """A figure as PNG; the name is that of its file."""

    name: str
    title: str
    png: bytes


def pictures(results: Sequence[Mapping[str, Any]]) -> tuple[Picture, ...]:
    """All figures that the results have data for.

    Args:
        results: points of one sweep, each with its details.

    Raises:
        InvalidRequest: matplotlib is not installed.
    """
    drawn = [
        ("timeline", "Acceptance, v and k, and speed-up over the run", _timeline(results)),
        ("latency", "Latency: share of requests at or below", _latency(results)),
        ("rounds", "Where the time of a round goes", _bars(_round_parts(results), "ms per round")),
        ("sessions", "Where the wall time of sessions goes", _bars(_session_parts(results), "share, %")),
        ("positions", "Acceptance by position", _positions(results)),
        ("categories", "Acceptance by category and position", _categories(results)),
        ("sweep", "Throughput and latency over the sweep", _sweep(results)),
    ]
    return tuple(Picture(name, title, _png(figure)) for name, title, figure in drawn if figure is not None)


def name_of(result: Mapping[str, Any]) -> str:
    """A point in a legend."""
    limit = f", {result['max_concurrency']} at once" if result["max_concurrency"] else ""
    return f"rate {result['request_rate']}{limit}"


def _canvas(rows: int = 1, columns: int = 1) -> tuple[Figure, list[Axes]]:
    try:
        from matplotlib.figure import Figure as NewFigure
    except ImportError as error:
        raise InvalidRequest("needs matplotlib: pip install dlite[models]", field="--report") from error
    height = HEIGHT_INCHES if rows == 1 else 1.9 * rows
    figure = NewFigure(figsize=(WIDTH_INCHES, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharex="col" if rows > 1 else False)
    for each in axes.flat:
        each.spines[["top", "right"]].set_visible(False)
        each.grid(color=FAINT, linewidth=0.6)
        each.set_axisbelow(True)
        each.tick_params(labelsize=8, colors=INK)
    return figure, list(axes.flat)


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def _timeline(results: Sequence[Mapping[str, Any]]) -> Figure | None:
    """One axis of time; a dot is a request. Points of a sweep follow one another."""
    if not any(rate is not None for each in results for rate in each["acceptance_rates"]):
        return None
    figure, (top, middle, bottom) = _canvas(rows=3)
    begin = 0.0
    for result in results:
        times = [begin + seconds for seconds in result["start_times"]]
        _dots(top, times, result["acceptance_rates"], (COLOURS[0], "acceptance rate"))
        _dots(middle, times, result["mean_verify_block_sizes"], (COLOURS[1], "v, rows verified"))
        _dots(middle, times, result["mean_num_draft_tokens"], (COLOURS[2], "k, proposals"))
        plain = result.get("baseline", {}).get("mean_tpot_ms")
        speedups = [plain / 1e3 / each if plain and each else None for each in result["tpots"]]
        _dots(bottom, times, speedups, (COLOURS[3], "speed-up over plain (TPOT)"))
        begin = max(times, default=begin) + 1.0
    top.set_ylim(-0.05, 1.05)
    middle.set_ylim(0, 1.15 * middle.get_ylim()[1])
    bottom.axhline(1.0, color=INK, linewidth=0.8, linestyle="--")
    bottom.set_xlabel("seconds", fontsize=8)
    for axes in (top, middle, bottom):
        _legend(axes)
    return figure


def _dots(axes: Axes, times: Sequence[float], values: Sequence[float | None], style: tuple[str, str]) -> None:
    colour, label = style
    pairs = [(time, value) for time, value in zip(times, values, strict=True) if value is not None]
    if not pairs:
        return
    # Points of a sweep share one entry in the legend.
    known = axes.get_legend_handles_labels()[1]
    name = None if label in known else label
    axes.plot(*zip(*pairs, strict=True), "o", markersize=3.5, alpha=0.75, color=colour, label=name)


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=7, frameon=False, loc="best")


def _latency(results: Sequence[Mapping[str, Any]]) -> Figure | None:
    figure, axes = _canvas(columns=3)
    for panel, key, label in zip(
        axes, ("ttfts", "tpots", "latencies"), ("TTFT", "TPOT", "E2EL"), strict=True
    ):
        for number, result in enumerate(results):
            good = [status == "ok" for status in result["statuses"]]
            values = sorted(v * 1e3 for v, ok in zip(result[key], good, strict=True) if ok and v is not None)
            shares = [100 * (rank + 1) / len(values) for rank in range(len(values))]
            colour = COLOURS[number % len(COLOURS)]
            panel.step(values, shares, where="post", color=colour, label=name_of(result))
        panel.set_xlabel(f"{label}, ms", fontsize=8)
    axes[0].set_ylabel("%", fontsize=8)
    axes[0].legend(fontsize=6.5, frameon=False, loc="lower right")
    return figure


def _round_parts(results: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    return {
        name_of(each): {part: each["round_ms"][part] for part in ROUND_PARTS}
        for each in results
        if each["rounds"]
    }


def _session_parts(results: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Of both arms."""
    rows = {}
    for result in results:
        for arm, label in ((result, ""), (result.get("baseline"), ", plain")):
            split = arm["sessions"] if arm else {"wall_s": 0}
            if split["wall_s"]:
                shares = {part: 100 * split[f"{part}_s"] / split["wall_s"] for part in SESSION_PARTS}
                rows[name_of(result) + label] = shares
    return rows


def _bars(rows: Mapping[str, Mapping[str, float]], unit: str) -> Figure | None:
    if not rows:
        return None
    figure, (axes,) = _canvas()
    labels = list(rows)
    begins = [0.0] * len(labels)
    for number, part in enumerate(next(iter(rows.values()))):
        lengths = [rows[label][part] for label in labels]
        axes.barh(labels, lengths, left=begins, height=0.6, color=COLOURS[number], label=part)
        begins = [begin + length for begin, length in zip(begins, lengths, strict=True)]
    axes.invert_yaxis()
    axes.margins(y=0.25 / len(labels))
    axes.set_xlabel(unit, fontsize=8)
    figure.legend(fontsize=7, frameon=False, loc="outside upper center", ncols=5)
    return figure


def _positions(results: Sequence[Mapping[str, Any]]) -> Figure | None:
    key = "spec_decode_per_position_acceptance_rates"
    if not any(each[key] for each in results):
        return None
    figure, (axes,) = _canvas()
    for number, result in enumerate(results):
        rates = [100 * rate for rate in result[key]]
        axes.plot(range(1, len(rates) + 1), rates, "o-", markersize=4, color=COLOURS[number % len(COLOURS)],
                  label=name_of(result))  # fmt: skip
    axes.set_xlabel("position of the proposal", fontsize=8)
    axes.set_ylabel("accepted of verified, %", fontsize=8)
    axes.set_ylim(-3, 103)
    axes.set_xticks(range(1, max(len(each[key]) for each in results) + 1))
    _legend(axes)
    return figure


def _categories(results: Sequence[Mapping[str, Any]]) -> Figure | None:
    """A matrix of the first point: rows are categories; what was never verified stays empty."""
    found = results[0]["spec_decode_by_category"]
    rows = {name: each["per_position_acceptance_rates"] for name, each in found.items()}
    width = max((len(rates) for rates in rows.values()), default=0)
    if not width:
        return None
    figure, (axes,) = _canvas()
    nan = float("nan")
    cells = [[*(100 * rate for rate in rates), *[nan] * (width - len(rates))] for rates in rows.values()]
    axes.imshow(cells, cmap="Blues", vmin=0, vmax=100, aspect="auto")
    axes.grid(visible=False)
    axes.set_xticks(range(width), [str(position + 1) for position in range(width)])
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_xlabel("position of the proposal", fontsize=8)
    for y, row in enumerate(cells):
        for x, value in enumerate(row):
            if value == value:  # not NaN
                colour = "white" if value > 60 else INK
                axes.text(x, y, f"{value:.0f}", ha="center", va="center", fontsize=8, color=colour)
    return figure


def _sweep(results: Sequence[Mapping[str, Any]]) -> Figure | None:
    if len(results) < 2:
        return None
    figure, (left, right) = _canvas(columns=2)
    labels = [name_of(each).removeprefix("rate inf, ") for each in results]
    arms: list[tuple[str, list[Any]]] = [
        ("speculative", list(results)),
        ("plain", [each.get("baseline") for each in results]),
    ]
    for (arm, rows), colour in zip(arms, COLOURS, strict=False):
        if any(each is None for each in rows):
            continue
        for panel, key in ((left, "output_throughput"), (right, "median_tpot_ms")):
            values = [each[key] if each[key] is not None else float("nan") for each in rows]
            panel.plot(labels, values, "o-", markersize=4, color=colour, label=arm)
    left.set_ylabel("tokens/s", fontsize=8)
    right.set_ylabel("median TPOT, ms", fontsize=8)
    for axes in (left, right):
        axes.set_ylim(0, 1.15 * axes.get_ylim()[1])
        _legend(axes)
    return figure
