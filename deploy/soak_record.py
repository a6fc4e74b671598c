"""What is noted of a soak, and what it says: whether something leaks, hangs or fails."""

from __future__ import annotations

import os
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STUCK_SECONDS = 120.0
# Before that pools, caches and code are still being filled.
LEAST_JUDGED_MINUTES = 10.0
MOST_GROWTH = 0.05
MIB = 1 << 20


@dataclass(eq=False)
class Moment:
    """What is true of the fleet at one time, in seconds since the start; memory in MiB, by process."""

    seconds: float
    memory: dict[str, float]
    files: dict[str, int]
    pages_held: int
    num_running: int
    num_done: int


@dataclass(eq=False)
class Soak:
    """Everything that is known of a run."""

    moments: list[Moment] = field(default_factory=list)
    faults: list[tuple[float, str, str]] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    longest_silence: float = 0.0
    last_heard: dict[int, float] = field(default_factory=dict)


def memory_of(pid: int) -> float:
    """Resident MiB; 0 for a process that is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return round(pages * os.sysconf("SC_PAGE_SIZE") / MIB, 2)


def files_of(pid: int) -> int:
    """Open files and sockets; 0 for a process that is gone."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def growth(moments: Sequence[Moment], name: str) -> float:
    """How much the memory of a process grew over the last half, as a share of it: by a straight line."""
    late = [moment for moment in moments[len(moments) // 2 :] if moment.memory[name]]
    if len(late) < 3:
        return 0.0
    seconds = [moment.seconds for moment in late]
    memory = [moment.memory[name] for moment in late]
    slope = statistics.linear_regression(seconds, memory).slope
    return slope * (seconds[-1] - seconds[0]) / statistics.fmean(memory)


def record(minutes: float, num_coordinators: int, soak: Soak, end: dict[str, Any]) -> dict[str, Any]:
    """What is told of a run, and whether all is as it should be.

    Args:
        num_coordinators: each has one stream to every model service.
        end: what was left when all texts had ended.
    """
    survivors = [name for name in soak.moments[0].memory if name.endswith("-1")]
    grown = {name: round(growth(soak.moments, name), 4) for name in survivors}
    is_judged = minutes >= LEAST_JUDGED_MINUTES
    leaks = [name for name, share in grown.items() if is_judged and share > MOST_GROWTH]
    good = (
        not soak.failures
        and not leaks
        and not end["surplus_pages"]
        and not end["left_running"]
        and all(count == num_coordinators for count in end["streams"].values())
        and soak.longest_silence < STUCK_SECONDS
    )
    return {
        "name": "soak",
        "pass": good,
        "minutes": minutes,
        "requests": dict(soak.statuses),
        "failures": soak.failures,
        "faults": [{"seconds": at, "process": name, "signal": number} for at, name, number in soak.faults],
        "memory_growth": grown,
        "memory_judged": is_judged,
        "longest_silence_seconds": round(soak.longest_silence, 1),
        **end,
        "moments": [vars(moment) for moment in soak.moments],
    }
