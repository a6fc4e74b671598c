"""Which sequences a step extends, by how many rows, and who gives up its pages. Pure.

There is no prefill phase and no decode phase: a sequence has tokens still to compute. A step takes
every sequence in a Run, the oldest pending cohort of each coordinator, and prefill chunks up to a
budget of rows, oldest arrival first. When pages run out the newest arrival is evicted, never one
older than the sequence that needs the page; so the oldest always gets on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from target_service.commands import Verify
from target_service.sequence import Sequence as Request
from target_service.sequence import SequenceState


@dataclass(frozen=True, eq=False)
class Work:
    """Extend `sequence` by its next `num_rows` tokens; `decides` on the last chunk only."""

    sequence: Request
    num_rows: int
    decides: bool
    new_pages: int


@dataclass(frozen=True, eq=False)
class Plan:
    work: tuple[Work, ...]
    evicted: tuple[Request, ...]


@dataclass(frozen=True)
class Budget:
    """What a step may use.

    Args:
        free_pages: pages that can be allocated now.
        page_size: tokens a page holds.
        prefill_rows: rows of prefill, over all sequences.
        references: how many sequences list a page; evicting one of several frees nothing.
    """

    free_pages: int
    page_size: int
    prefill_rows: int
    references: Callable[[int], int] = lambda _page: 1


def cohort_of(sequence: Request) -> int | None:
    """The cohort of a pending Verify; None for every other kind of work."""
    active = sequence.active
    if active is None or not isinstance(active.command, Verify):
        return None
    return active.command.cohort


def oldest_cohorts(waiting: Iterable[Request]) -> dict[str, int]:
    """For each coordinator the cohort whose first Verify has waited longest."""
    oldest: dict[str, tuple[float, int]] = {}
    for sequence in waiting:
        cohort = cohort_of(sequence)
        if cohort is None or sequence.active is None:
            continue
        candidate = (sequence.active.arrived, cohort)
        coordinator = sequence.key.coordinator_id
        oldest[coordinator] = min(candidate, oldest.get(coordinator, candidate))
    return {coordinator: cohort for coordinator, (_, cohort) in oldest.items()}


def chunk(sequence: Request, rows_left: int) -> tuple[int, bool]:
    """(rows, decides) of the sequence's next chunk: the anchor and the proposals stay together in
    the last chunk, the rows before them may be cut anywhere."""
    block = 1 + len(sequence.proposals)
    before = sequence.num_pending - 1
    if before == 0 or before + block <= rows_left:
        return before + block, True
    return min(before, rows_left), False


class _Pages:
    """Free pages while a plan is made; evicts newest first."""

    def __init__(self, sequences: Iterable[Request], budget: Budget) -> None:
        self.free = budget.free_pages
        self.page_size = budget.page_size
        self.evicted: list[Request] = []
        self._planned: set[int] = set()
        self._references = budget.references
        self._dropped: Counter[int] = Counter()
        self._holders = sorted((s for s in sequences if s.pages), key=lambda s: s.arrival)

    def reserve(self, sequence: Request) -> int | None:
        """New pages for all pending tokens and the proposals; None when they cannot be had."""
        length = sequence.committed_length + len(sequence.proposals)
        needed = max(0, -(-length // self.page_size) - len(sequence.pages))
        while needed > self.free:
            victim = self._newest_after(sequence)
            if victim is None:
                return None
            self._holders.remove(victim)
            self.evicted.append(victim)
            self.free += self._drop(victim.pages)
        self.free -= needed
        self._planned.add(id(sequence))
        return needed

    def _drop(self, pages: Sequence[int]) -> int:
        """How many of a victim's pages nobody else holds."""
        self._dropped.update(pages)
        return sum(self._references(page) == self._dropped[page] for page in pages)

    def _newest_after(self, sequence: Request) -> Request | None:
        if not self._holders or self._holders[-1].arrival <= sequence.arrival:
            return None
        newest = self._holders[-1]
        return None if id(newest) in self._planned else newest


def plan(sequences: Sequence[Request], budget: Budget) -> Plan:
    """Plans one step.

    Args:
        sequences: all open sequences.
        budget: see `Budget`.

    Returns:
        Work in arrival order; evicted sequences are not in it.
    """
    waiting = [s for s in sequences if s.state is SequenceState.WAITING]
    cohorts = oldest_cohorts(waiting)
    pages = _Pages(sequences, budget)
    rows_left = budget.prefill_rows
    work: list[Work] = []
    for sequence in sorted(waiting, key=lambda s: s.arrival):
        cohort = cohort_of(sequence)
        if cohort is not None and cohorts[sequence.key.coordinator_id] != cohort:
            continue
        if sequence in pages.evicted or sequence.awaits_grammar:
            continue
        is_prefill = sequence.num_pending > 1
        if is_prefill and rows_left <= 0:
            continue
        new_pages = pages.reserve(sequence)
        if new_pages is None:
            continue
        num_rows, decides = chunk(sequence, rows_left)
        rows_left -= num_rows if is_prefill else 0
        work.append(Work(sequence, num_rows, decides, new_pages))
    return Plan(tuple(work), tuple(pages.evicted))
