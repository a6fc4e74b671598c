"""What a drafter without history does not hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coordinator.loadtest.figures import ReportPoint
from coordinator.loadtest.rounds import PointRounds
from coordinator.plotting import BLUE, MUTED, ORANGE, canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FLOAT_BYTES = 4
# A context that agents reach, shown also where the run did not.
_LEAST_CONTEXT = 8192
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True)
class DraftMemory:
    """Bytes of one request. `history`: for each token of the context; `features`: whatever the context is."""

    history: int
    features: int


def draft_memory(about: Mapping[str, str | int | float]) -> DraftMemory | None:
    """From the header of a trace; None without a drafter that says its shape."""
    history = int(about.get("drafter_kv_bytes_per_token", 0))
    features = int(about.get("hidden_size", 0)) * int(about.get("num_tapped_layers", 0)) * _FLOAT_BYTES
    return DraftMemory(history, features) if history and features else None


def memory(points: Sequence[ReportPoint]) -> Figure | None:
    """Over the context, with the contexts of this run marked; None without rounds or a drafter."""
    told = [point.rounds for point in points if point.rounds.has_any]
    size = draft_memory(told[0].about) if told else None
    if size is None:
        return None
    contexts = [record.context for rounds in told for record in (*rounds.speculative, *rounds.plain)]
    most = max(*contexts, _LEAST_CONTEXT)
    figure, (axes,) = canvas(row_inches=3.0)
    ends = [1, most]
    axes.plot(
        ends, [size.history * end for end in ends], color=ORANGE, label="a drafter with a history would hold"
    )
    axes.plot(ends, [size.features] * 2, color=BLUE, label="this drafter is given, and keeps nothing")
    longest = max(contexts)
    axes.plot([longest], [size.history * longest], "o", color=ORANGE)
    axes.annotate(
        f"longest context of this run: {longest} tokens, {readable(size.history * longest)} not held",
        (longest, size.history * longest),
        xytext=(8, -14),
        textcoords="offset points",
        fontsize=8,
        color=MUTED,
    )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xlim(64, most)
    axes.xaxis.set_major_formatter(lambda value, _: f"{int(value)}")
    axes.yaxis.set_major_formatter(lambda value, _: readable(value))
    axes.set_xlabel("context, tokens")
    axes.set_ylabel("of one request")
    axes.legend(fontsize=8, frameon=False, loc="upper left")
    peak = max(_peak_tokens(rounds) for rounds in told)
    most_bytes = readable(size.history * peak)
    text = f"all requests of this run together, at most: {peak} tokens of context, {most_bytes}"
    axes.set_title(text, fontsize=8.5, loc="left", color=MUTED)
    return figure


def readable(num_bytes: float) -> str:
    """In the unit that fits."""
    unit = 0
    while num_bytes >= 1024 and unit < len(_UNITS) - 1:
        num_bytes /= 1024
        unit += 1
    return f"{num_bytes:.3g} {_UNITS[unit]}"


def _peak_tokens(rounds: PointRounds) -> int:
    """Most context tokens of requests that were under way together, by the rounds of either arm."""
    changes: list[tuple[float, int]] = []
    for records in (rounds.speculative, rounds.plain):
        spans: dict[str, tuple[float, float, int]] = {}
        for record in records:
            start, _, _ = spans.get(record.request_id, (record.ended - record.parts.wall, 0.0, 0))
            spans[record.request_id] = (start, record.ended, record.context)
        for start, end, context in spans.values():
            changes += [(start, context), (end, -context)]
    running = peak = 0
    for _, change in sorted(changes):
        running += change
        peak = max(peak, running)
    return peak
