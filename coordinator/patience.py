"""When a client tries again, and when it gives up. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ClientOptions:
    """How a client behaves when a coordinator is gone.

    Args:
        patience_seconds: how long it tries to continue a text that does not get on; 0 never resumes.
        first_pause_seconds, longest_pause_seconds: between tries; doubles from one to the other.
    """

    patience_seconds: float = 60.0
    first_pause_seconds: float = 0.1
    longest_pause_seconds: float = 2.0


class Patience:
    """Decides after each failure of one request.

    A request that has not begun is tried once at each address: nobody waits long to learn that nothing
    is there. One that has begun is worth `patience_seconds`, counted from its last sign of life.
    """

    def __init__(self, options: ClientOptions, num_addresses: int) -> None:
        self._options = options
        self._num_untried = num_addresses - 1
        self._num_messages = 0
        self._failing_since = 0.0
        self._pause_seconds = 0.0

    def pause_seconds(self, num_messages: int, now: float) -> float | None:
        """Seconds before the next try; None to give up.

        Args:
            num_messages: that have arrived so far.
            now: of a monotonic clock.
        """
        if not num_messages:
            self._num_untried -= 1
            return 0.0 if self._num_untried >= 0 else None
        if num_messages > self._num_messages:
            self._num_messages, self._failing_since = num_messages, now
            self._pause_seconds = self._options.first_pause_seconds
        if now - self._failing_since >= self._options.patience_seconds:
            return None
        pause = self._pause_seconds
        self._pause_seconds = min(2 * pause, self._options.longest_pause_seconds)
        return pause
