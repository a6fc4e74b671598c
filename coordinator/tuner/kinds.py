"""T_S: what cycles took beyond the model, by kind of cycle. So a model that is too kind corrects itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from coordinator.tuner.running import Window

_WINDOW = 32
# After so many speculating cycles of other kinds a kind is as good as never seen, so that it is tried again.
_REMEMBERED = 2000


class CycleKind(NamedTuple):
    """The model errs differently in each, and what it owes the one is no cost of the others.

    Args:
        is_mixed: some run while others draft. is_overlapped: there are several cohorts.
    """

    is_mixed: bool
    is_overlapped: bool

    @classmethod
    def of(cls, num_runs: int, num_cohorts: int) -> CycleKind:
        return cls(num_runs > 0, num_cohorts > 1)


KINDS = tuple(CycleKind(mixed, overlapped) for overlapped in (False, True) for mixed in (False, True))


@dataclass
class _Seen:
    """Of one kind: its last cycles, their median, and when the newest was."""

    window: Window = field(default_factory=lambda: Window(_WINDOW))
    median: float = 0.0
    at: int = 0


class Overheads:
    """The median of the last cycles of each kind."""

    def __init__(self) -> None:
        self._seen: dict[CycleKind, _Seen] = {}
        self._num_cycles = 0

    def note(self, kind: CycleKind, seconds: float) -> None:
        """Takes a cycle; less than nothing where it was quicker than the model."""
        self._num_cycles += 1
        seen = self._seen.setdefault(kind, _Seen())
        seen.window.note(seconds)
        seen.median, seen.at = max(seen.window.percentile(50), 0.0), self._num_cycles
        oldest = self._num_cycles - _REMEMBERED
        self._seen = {kind: seen for kind, seen in self._seen.items() if seen.at >= oldest}

    def seconds(self, kind: CycleKind) -> float:
        """T_S of a kind; before it was seen, that of the other one with as many cohorts. Several cohorts
        are taken to hide it until they are tried: one computes while another is on its way."""
        seen = self._seen.get(kind) or self._seen.get(CycleKind(not kind.is_mixed, kind.is_overlapped))
        return seen.median if seen else 0.0

    def all(self) -> dict[CycleKind, float]:
        """Of every kind, as they are now."""
        return {kind: self.seconds(kind) for kind in KINDS}
