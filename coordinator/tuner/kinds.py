"""T_S: what cycles took beyond the model, by kind of cycle. So a model that is too kind corrects itself."""

from __future__ import annotations

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


class Overheads:
    """The median of the last cycles of each kind."""

    def __init__(self) -> None:
        self._windows: dict[CycleKind, Window] = {}
        self._medians: dict[CycleKind, float] = {}
        self._last_seen: dict[CycleKind, int] = {}
        self._num_cycles = 0

    def note(self, kind: CycleKind, seconds: float) -> None:
        """Takes a cycle; less than nothing where it was quicker than the model."""
        self._num_cycles += 1
        window = self._windows.setdefault(kind, Window(_WINDOW))
        window.note(seconds)
        self._medians[kind] = max(window.percentile(50), 0.0)
        self._last_seen[kind] = self._num_cycles
        for other in [one for one, at in self._last_seen.items() if self._num_cycles - at > _REMEMBERED]:
            for found in (self._windows, self._medians, self._last_seen):
                del found[other]

    def seconds(self, kind: CycleKind) -> float:
        """T_S of a kind; before it was seen, that of the other one with as many cohorts. Several cohorts
        are taken to hide it until they are tried: one computes while another is on its way."""
        if kind in self._medians:
            return self._medians[kind]
        return self._medians.get(CycleKind(not kind.is_mixed, kind.is_overlapped), 0.0)

    def all(self) -> dict[CycleKind, float]:
        """Of every kind, as they are now."""
        return {kind: self.seconds(kind) for kind in KINDS}
