"""The figures of a report. Pure: from results and rounds to PNGs, without a display."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from coordinator.loadtest.rounds import PointRounds
from coordinator.plotting import png

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class ReportPoint:
    """One point of a sweep: its result with its details, and the rounds as far as they were told."""

    result: Mapping[str, Any]
    rounds: PointRounds = field(default_factory=PointRounds)

    @property
    def name(self) -> str:
        """In legends."""
        return name_of(self.result)


@dataclass(frozen=True)
class Picture:
    """A figure as PNG; the name is that of its file, the caption says how to read it."""

    name: str
    title: str
    caption: str
    png: bytes


@dataclass(frozen=True)
class Words:
    """What stands above and below a figure."""

    title: str
    caption: str


# In the order of the page.
WORDS = {
    "timeline": Words(
        "Accept rate, chosen v and k, and speed-up over the run",
        "One axis of time. v and k should follow the accept rate at once: where it has fallen and they have "
        "not, the tuner looks back too far. Shaded: the time of the plain arm, the measure of speed-up.",
    ),
    "rounds": Words(
        "Where the time of a round goes",
        "Mean of the rounds with proposals, in milliseconds: T_D in the drafter, T_V in the target, T_net "
        "on either link, waiting in the services, and T_S in the coordinator.",
    ),
    "latency": Words(
        "Latency: share of requests at or below",
        "From the scheduled arrival; successful requests. Dashed: the plain arm. ITL is per chunk, and "
        "with speculation a chunk has several tokens: compare TPOT.",
    ),
    "sweep": Words(
        "Throughput, latency and speed-up over the sweep",
        "One mark a point of the sweep. Speed-up above 1: speculation is faster than plain decoding of "
        "the same sessions in the same run.",
    ),
    "classes": Words(
        "Accept rate by class over the run",
        "A class is the data set's category, or else traffic and source as the tuner counts them.",
    ),
    "positions": Words(
        "Acceptance by position and class",
        "Share of proposals that stood, of those that were verified and reached (all before them stood). "
        "Empty: none was. The number of rounds stands behind each class.",
    ),
    "sessions": Words(
        "Where the wall time of sessions goes",
        "Whole sessions of either arm: only the share f of decoding can become faster, by S_D, so the "
        "workflow's speed-up is 1 / ((1 - f) + f / S_D).",
    ),
    "memory": Words(
        "Draft KV bytes that are not held",
        "A drafter of this shape that kept a history would hold keys and values of every token of the "
        "context (2 L n_kv d_h b bytes a token); this one is given the target's features of one position.",
    ),
}


def pictures(points: Sequence[ReportPoint]) -> tuple[Picture, ...]:
    """All figures that there are data for, in their order on the page.

    Args:
        points: of one sweep, at least one.

    Raises:
        InvalidRequest: matplotlib is not installed.
    """
    found = []
    drawing = _drawing()
    for name, words in WORDS.items():
        figure = drawing[name](points)
        if figure is not None:
            found.append(Picture(name, words.title, words.caption, png(figure)))
    return tuple(found)


def name_of(result: Mapping[str, Any]) -> str:
    """A point in a legend."""
    limit = f", {result['max_concurrency']} at once" if result["max_concurrency"] else ""
    return f"rate {result['request_rate']}{limit}"


def _drawing() -> dict[str, Callable[[Sequence[ReportPoint]], Figure | None]]:
    from coordinator.loadtest import figure_acceptance as acceptance
    from coordinator.loadtest import figure_times as times
    from coordinator.loadtest.figure_latency import latency
    from coordinator.loadtest.figure_memory import memory
    from coordinator.loadtest.figure_sweep import sweep
    from coordinator.loadtest.figure_timeline import timeline

    return {
        "timeline": timeline,
        "rounds": times.round_times,
        "latency": latency,
        "sweep": sweep,
        "classes": acceptance.classes_over_time,
        "positions": acceptance.positions,
        "sessions": times.session_times,
        "memory": memory,
    }
