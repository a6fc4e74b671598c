"""When a replica that failed is asked again. Pure, the clock is a parameter."""

from __future__ import annotations

from collections.abc import Callable


class Breaker:
    """Whether asking is worth while. After a failure it is not for a while that doubles with every
    failure that follows; then one question probes, and an answer makes everything good."""

    FIRST_SECONDS = 0.25
    LONGEST_SECONDS = 8.0

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._pause_seconds = 0.0
        self._closed_until = 0.0

    @property
    def allows(self) -> bool:
        return self._now() >= self._closed_until

    def note_asked(self) -> None:
        """A question after a failure is a probe: nobody else asks until it is answered or late."""
        if self._pause_seconds:
            self._closed_until = self._now() + self._pause_seconds

    def note_failure(self) -> None:
        """A question failed; of those that were asked together one counts."""
        if not self._pause_seconds or self.allows:
            self.trip()

    def trip(self) -> None:
        """The replica failed as a whole, however soon after the last time."""
        self._pause_seconds = min(2 * self._pause_seconds, self.LONGEST_SECONDS) or self.FIRST_SECONDS
        self._closed_until = self._now() + self._pause_seconds

    def note_answer(self) -> None:
        self._pause_seconds = self._closed_until = 0.0
