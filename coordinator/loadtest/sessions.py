"""Where the wall time of sessions went, and what faster decoding means for whole workflows. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from coordinator.loadtest.samples import Sample


@dataclass(frozen=True)
class TimeSplit:
    """Seconds. `queue`: for a place in the client and at the server; `tool`: between the turns;
    `other`: the rest of the wall time (network, and what no service counts)."""

    wall: float = 0.0
    queue: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0
    tool: float = 0.0
    num_tokens: int = 0
    num_sessions: int = 0

    @property
    def other(self) -> float:
        return max(self.wall - self.queue - self.prefill - self.decode - self.tool, 0.0)

    @property
    def decode_share(self) -> float | None:
        return self.decode / self.wall if self.wall else None


@dataclass(frozen=True)
class Workflow:
    """Speed-up of whole sessions; None where it cannot be told.

    Args:
        decode_share: f, of the plain arm's wall time.
        decode_speedup: S_D, decode seconds a token, plain over speculative.
        predicted: 1 / ((1 - f) + f / S_D).
        measured: wall time, plain over speculative.
        num_sessions: that ended well in both arms.
    """

    decode_share: float | None
    decode_speedup: float | None
    predicted: float | None
    measured: float | None
    num_sessions: int


def whole_sessions(samples: Sequence[Sample]) -> dict[int, tuple[Sample, ...]]:
    """Sessions all of whose turns went well, in order of their turns."""
    by_session: dict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_session[sample.place.session].append(sample)
    return {
        number: tuple(sorted(turns, key=lambda each: each.place.turn))
        for number, turns in by_session.items()
        if all(each.is_ok for each in turns)
    }


def time_split(sessions: Mapping[int, Sequence[Sample]]) -> TimeSplit:
    """Sums over whole sessions (see `whole_sessions`)."""
    turns = [sample for session in sessions.values() for sample in session]
    usages = [sample.finished.usage for sample in turns]
    gaps = [
        later.scheduled_seconds - earlier.ended_seconds
        for session in sessions.values()
        for earlier, later in pairwise(session)
    ]
    return TimeSplit(
        wall=sum(each[-1].ended_seconds - each[0].scheduled_seconds for each in sessions.values()),
        queue=sum(each.queue_seconds for each in turns) + sum(each.queue_ms for each in usages) / 1e3,
        prefill=sum(each.prefill_ms for each in usages) / 1e3,
        decode=sum(each.decode_ms for each in usages) / 1e3,
        tool=sum(gaps),
        num_tokens=sum(each.num_tokens for each in turns),
        num_sessions=len(sessions),
    )


def predicted_speedup(decode_share: float, decode_speedup: float) -> float:
    """1 / ((1 - f) + f / S_D)."""
    return 1.0 / ((1.0 - decode_share) + decode_share / decode_speedup)


def workflow(speculative: Sequence[Sample], plain: Sequence[Sample]) -> Workflow:
    """Compares sessions that went well in both arms."""
    ours, theirs = whole_sessions(speculative), whole_sessions(plain)
    both = sorted(
        number for number in ours.keys() & theirs.keys() if len(ours[number]) == len(theirs[number])
    )
    fast = time_split({number: ours[number] for number in both})
    slow = time_split({number: theirs[number] for number in both})
    share = slow.decode_share
    speedup = None
    if fast.decode > 0 and fast.num_tokens and slow.num_tokens:
        speedup = (slow.decode / slow.num_tokens) / (fast.decode / fast.num_tokens)
    return Workflow(
        decode_share=share,
        decode_speedup=speedup,
        predicted=predicted_speedup(share, speedup) if share is not None and speedup else None,
        measured=slow.wall / fast.wall if fast.wall else None,
        num_sessions=len(both),
    )
