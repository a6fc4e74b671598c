"""How many texts run at the target at once, and who waits for a place: first come, first served."""

from __future__ import annotations

import asyncio
from collections import deque

from protos.errors import Busy, InvalidRequest

_RETRY_SECONDS = 1.0


class Place:
    """A request's place: granted at once, or when earlier requests have left. `leave` may be called
    at any time, and again."""

    def __init__(self, slots: Slots, num_texts: int) -> None:
        self.num_texts = num_texts
        self._slots = slots
        self._granted = asyncio.Event()

    @property
    def is_granted(self) -> bool:
        return self._granted.is_set()

    async def wait(self) -> None:
        """Waits until the request may start."""
        await self._granted.wait()

    def leave(self) -> None:
        """Gives the place up, granted or not."""
        self._slots._leave(self)

    def _grant(self) -> None:
        self._granted.set()


class Slots:
    """Places for `capacity` texts, and a queue for `max_waiting` requests.

    Invariant: `num_used` is the sum over granted places, at most `capacity`; the head of the queue
    does not fit, else it would have been granted (so a request of many texts is not overtaken).
    """

    def __init__(self, capacity: int, max_waiting: int) -> None:
        self._capacity = capacity
        self._max_waiting = max_waiting
        self._granted: set[Place] = set()
        self._queue: deque[Place] = deque()

    @property
    def num_used(self) -> int:
        """Texts that may run."""
        return sum(place.num_texts for place in self._granted)

    @property
    def num_waiting(self) -> int:
        """Requests in the queue."""
        return len(self._queue)

    def enter(self, num_texts: int) -> Place:
        """Takes a place, or queues for one.

        Raises:
            InvalidRequest: more texts than there can ever be places.
            Busy: the queue is full.
        """
        if num_texts > self._capacity:
            raise InvalidRequest(
                f"{num_texts} choices, but at most {self._capacity} texts run at once: ask for fewer",
                field="n",
            )
        place = Place(self, num_texts)
        self._queue.append(place)
        self._grant()
        if not place.is_granted and len(self._queue) > self._max_waiting:
            self._queue.remove(place)
            raise Busy(
                f"{self.num_used} texts are running, at most {self._capacity}; "
                f"{len(self._queue)} requests wait, at most {self._max_waiting}",
                retry_after_seconds=_RETRY_SECONDS,
            )
        return place

    def _leave(self, place: Place) -> None:
        if place in self._granted:
            self._granted.remove(place)
        elif place in self._queue:
            self._queue.remove(place)
        self._grant()

    def _grant(self) -> None:
        num_used = self.num_used
        while self._queue and num_used + self._queue[0].num_texts <= self._capacity:
            place = self._queue.popleft()
            self._granted.add(place)
            num_used += place.num_texts
            place._grant()
