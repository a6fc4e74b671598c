"""Acceptance by class over time, and by position and class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from coordinator.loadtest.figures import ReportPoint
from coordinator.loadtest.rounds import PointRounds, bins, by_class, by_position
from coordinator.plotting import COLOURS, INK, canvas
from coordinator.trace.record import RoundRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# More lines or rows than these cannot be told apart.
MOST_CLASSES = 8
_NUM_BINS = 40
_LEAST_ROUNDS = 8


def classes_over_time(points: Sequence[ReportPoint]) -> Figure | None:
    """One line a class; points of a sweep follow one another. None with fewer than two classes."""
    told = [point.rounds for point in points if point.rounds.speculative]
    names = _most_used(told)
    if len(names) < 2:
        return None
    figure, (axes,) = canvas(row_inches=2.6)
    begin = 0.0
    for rounds in told:
        groups = by_class(rounds)
        for number, name in enumerate(names):
            records = groups.get(name, [])
            num_bins = max(min(_NUM_BINS // len(told), len(records) // _LEAST_ROUNDS), 4)
            found = [
                each
                for each in bins(records, rounds.begin, rounds.end, num_bins)
                if each.acceptance is not None
            ]
            axes.plot(
                [each.middle - rounds.begin + begin for each in found],
                [each.acceptance or 0.0 for each in found],
                color=COLOURS[number % len(COLOURS)],
                linewidth=1.3,
                marker=".",
                markersize=4,
                label=name if rounds is told[0] else None,
            )
        begin += rounds.end - rounds.begin
    axes.set_ylim(-0.05, 1.05)
    axes.set_ylabel("accept rate")
    axes.set_xlabel("seconds of rounds")
    axes.legend(fontsize=7.5, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.02))
    return figure


def positions(points: Sequence[ReportPoint]) -> Figure | None:
    """A matrix: rows are all rounds and then classes, columns positions."""
    rows = _rows_of_rounds([point.rounds for point in points if point.rounds.speculative])
    rows = rows or _rows_of_results(points)
    width = max((len(rates) for rates in rows.values()), default=0)
    if not width:
        return None
    figure, (axes,) = canvas(row_inches=1.1 + 0.34 * len(rows))
    nan = float("nan")
    cells = [
        [*(nan if rate is None else 100 * rate for rate in rates), *[nan] * (width - len(rates))]
        for rates in rows.values()
    ]
    axes.imshow(cells, cmap="Blues", vmin=0, vmax=100, aspect="auto")
    axes.grid(visible=False)
    axes.set_xticks(range(width), [str(position + 1) for position in range(width)])
    axes.set_yticks(range(len(rows)), list(rows))
    axes.tick_params(length=0)
    axes.set_xlabel("position of the proposal; numbers in %")
    for y, row in enumerate(cells):
        for x, value in enumerate(row):
            if value == value:  # not NaN
                colour = "white" if value > 60 else INK
                axes.text(x, y, f"{value:.0f}", ha="center", va="center", fontsize=8, color=colour)
    return figure


def _most_used(told: Sequence[PointRounds]) -> list[str]:
    counts: dict[str, int] = {}
    for rounds in told:
        for name, records in by_class(rounds).items():
            counts[name] = counts.get(name, 0) + len(records)
    return sorted(counts, key=lambda name: -counts[name])[:MOST_CLASSES]


def _rows_of_rounds(told: Sequence[PointRounds]) -> dict[str, Sequence[float | None]]:
    groups: dict[str, list[RoundRecord]] = {}
    for rounds in told:
        for name, records in by_class(rounds).items():
            groups.setdefault(name, []).extend(records)
    everything = [record for records in groups.values() for record in records]
    if not everything:
        return {}
    rows: dict[str, Sequence[float | None]] = {f"all ({len(everything)})": by_position(everything)}
    for name in _most_used(told):
        if len(groups) > 1:
            rows[f"{name} ({len(groups[name])})"] = by_position(groups[name])
    return rows


def _rows_of_results(points: Sequence[ReportPoint]) -> dict[str, Sequence[float | None]]:
    """From the ledgers: a point a row, then the categories of the first point."""
    rows: dict[str, Sequence[float | None]] = {}
    for point in points:
        rates = point.result["spec_decode_per_position_acceptance_rates"]
        if rates:
            rows[f"{point.name} ({point.result['spec_decode_num_drafts']})"] = rates
    categories: Mapping[str, Mapping[str, Sequence[float]]] = points[0].result["spec_decode_by_category"]
    for name, found in categories.items():
        rows[f"{name} ({found['num_drafts']})"] = found["per_position_acceptance_rates"]
    return rows
