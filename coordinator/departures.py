"""When requests leave for the drafter: cohorts.

A cohort asks the drafter together, so that it is one batch there, and verifies together, so that it
is one step at the target. Of P cohorts each is elsewhere in its cycle. A cohort is made anew each time
it leaves, of those who wait, first come first served:

* at most P are under way, each with its share of the requests that draft, rounded up;
* a cohort is over when its last member has come back to wait, or does something else;
* one that is late (a lost message, a step with a long prompt in it) holds up the others no longer
  than twice the time a cycle usually takes.

So a request waits for its own cohort to be complete and for nothing else. Everything here is called on
the event loop.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from coordinator.spent import Company
from coordinator.tuner.running import RunningMean

_LATE_CYCLES = 2.0
_LEAST_LATE_SECONDS = 0.005
_CYCLE_WINDOW = 16
# A timer must not fire just before what it waits for.
_TIMER_SLACK_SECONDS = 1e-4


def _no_time(size: int) -> float:
    return 0.0


@dataclass(frozen=True)
class Pace:
    """What the plan in force says.

    Args:
        draft_seconds: how long a cohort of a size keeps the drafter busy.
    """

    num_cohorts: int = 1
    num_drafting: int = 1
    cycle_seconds: float = 0.0
    draft_seconds: Callable[[int], float] = _no_time


@dataclass(eq=False)
class Cohort:
    """Under way; `members` are those that are not back."""

    number: int
    size: int
    left_at: float
    members: set[Hashable]

    @property
    def company(self) -> Company:
        return Company(self.number, self.size)


class Departures:
    """Who waits to leave, and who is under way.

    Args:
        pace: asked at each departure.
        now: seconds, a clock that runs like the event loop's.
    """

    def __init__(self, pace: Callable[[], Pace], now: Callable[[], float]) -> None:
        self._pace = pace
        self._now = now
        self._waiting: deque[tuple[Hashable, asyncio.Future[Cohort]]] = deque()
        self._cohort_of: dict[Hashable, Cohort] = {}
        self._under_way: list[Cohort] = []
        self._num_left = 0
        self._cycle = RunningMean(_CYCLE_WINDOW)
        self._timer: asyncio.TimerHandle | None = None
        self._is_check_due = False

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    async def gather(self, member: Hashable) -> Cohort:
        """Waits until the member's cohort leaves."""
        self._settle(member)
        future: asyncio.Future[Cohort] = asyncio.get_running_loop().create_future()
        self._waiting.append((member, future))
        self._check_soon()
        return await future

    def cohort_of(self, member: Hashable) -> Cohort | None:
        """The one that it left with and is not back from."""
        return self._cohort_of.get(member)

    def settle(self, member: Hashable) -> None:
        """The member does not come back to wait; harmless when it is not under way."""
        if member in self._cohort_of:
            self._settle(member)
            self._check_soon()

    def leave(self, member: Hashable) -> None:
        """The member goes, wherever it is; if it waits, it leaves by itself at once."""
        self._settle(member)
        for waiting, future in self._waiting:
            if waiting is member and not future.done():
                future.set_result(Cohort(0, 1, self._now(), set()))
        self._waiting = deque(entry for entry in self._waiting if entry[0] is not member)
        if self._waiting:
            self._check_soon()

    def _settle(self, member: Hashable) -> None:
        cohort = self._cohort_of.pop(member, None)
        if cohort is None:
            return
        cohort.members.discard(member)
        if not cohort.members and cohort in self._under_way:
            self._under_way.remove(cohort)
            self._cycle.note(self._now() - cohort.left_at)

    def _check_soon(self) -> None:
        """After all that has arrived with this message: then whoever came together is here."""
        if not self._is_check_due:
            self._is_check_due = True
            asyncio.get_running_loop().call_soon(self._check)

    def _check(self) -> None:
        self._is_check_due = False
        if not self._waiting:
            return
        pace, now = self._pace(), self._now()
        late = _LATE_CYCLES * max(pace.cycle_seconds, self._cycle.mean, _LEAST_LATE_SECONDS)
        self._under_way = [cohort for cohort in self._under_way if now - cohort.left_at < late]
        while self._waiting and len(self._under_way) < pace.num_cohorts:
            busy = self._drafter_busy_seconds(pace, now)
            if busy > 0.0:
                self._check_after(busy)
                return
            self._depart(pace, now)
        if self._waiting:
            self._check_after(min(cohort.left_at for cohort in self._under_way) + late - now)

    def _depart(self, pace: Pace, now: float) -> None:
        under_way = sum(len(cohort.members) for cohort in self._under_way)
        num_drafting = max(pace.num_drafting, len(self._waiting) + under_way)
        size = min(math.ceil(num_drafting / pace.num_cohorts), len(self._waiting))
        leaving = [self._waiting.popleft() for _ in range(size)]
        self._num_left += 1
        cohort = Cohort(self._num_left, size, now, {member for member, _ in leaving})
        self._under_way.append(cohort)
        for member, future in leaving:
            self._cohort_of[member] = cohort
            if not future.done():
                future.set_result(cohort)

    def _drafter_busy_seconds(self, pace: Pace, now: float) -> float:
        """How long the drafter still has to do with the cohort that left last: until then there is
        nothing to gain by leaving, and the two would become one batch."""
        if not self._under_way:
            return 0.0
        last = self._under_way[-1]
        return last.left_at + pace.draft_seconds(last.size) - now

    def _check_after(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay = max(seconds, 0.0) + _TIMER_SLACK_SECONDS
        self._timer = asyncio.get_running_loop().call_later(delay, self._check)
