"""The open streams: a newer stream of a coordinator ends its older one at once."""

from __future__ import annotations

from typing import Protocol

from protos.errors import DliteError, StaleRound


class Endable(Protocol):
    """A stream that the service can end, with an error or (None) in peace."""

    coordinator_id: str
    generation: int

    def end(self, error: DliteError | None) -> None: ...


class StreamRegistry:
    """The open streams by coordinator; at most one each, the one of the highest generation."""

    def __init__(self) -> None:
        self._streams: dict[str, Endable] = {}

    def join(self, stream: Endable, coordinator_id: str, generation: int) -> None:
        """Makes this the coordinator's stream and ends its older one.

        Raises:
            StaleRound: a stream of this or a higher generation is open.
        """
        held = self._streams.get(coordinator_id)
        if held is not None and held.generation >= generation:
            raise StaleRound(
                f"generation {generation} of {coordinator_id!r} comes after {held.generation}",
                field="hello.stream_generation",
            )
        if held is not None:
            held.end(StaleRound(f"generation {generation} of {coordinator_id!r} replaces {held.generation}"))
        self._streams[coordinator_id] = stream

    def leave(self, stream: Endable) -> None:
        """Forgets a stream; nothing happens when a newer one has taken its place."""
        if self._streams.get(stream.coordinator_id) is stream:
            del self._streams[stream.coordinator_id]

    def __len__(self) -> int:
        return len(self._streams)
