"""Where rounds are told as they end: sums that are always kept, and whoever listens.

Everything here is called on the event loop and never waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from coordinator.trace.record import RoundRecord, RoundSource
from coordinator.trace.sums import DraftSums, SourceSums, TextSums
from protos import coordinator_pb2
from protos.errors import Busy

MAX_LISTENERS = 16


class Listener(Protocol):
    """Takes records, and never waits."""

    def put(self, record: RoundRecord) -> None: ...


class RoundFeed:
    """The rounds of one coordinator."""

    def __init__(self) -> None:
        self._sums = {source: SourceSums() for source in RoundSource}
        self._drafters: dict[str, DraftSums] = {}
        self._texts = TextSums()
        self._listeners: list[Listener] = []
        self._num_tokens = 0

    def note_tokens(self, num_tokens: int) -> None:
        """Tokens that stand were decided, in a round that may go on."""
        self._num_tokens += num_tokens

    def note(self, record: RoundRecord) -> None:
        """A round has ended."""
        self._sums[record.source].note(record)
        if record.drafter:
            self._drafters.setdefault(record.drafter, DraftSums()).note(record)
        for listener in self._listeners:
            listener.put(record)

    def note_text(self, finished: coordinator_pb2.Finished) -> None:
        """A text has ended."""
        self._texts.note(finished)

    @contextmanager
    def listening(self, listener: Listener) -> Iterator[None]:
        """Tells a listener of everything that ends meanwhile.

        Raises:
            Busy: too many listen already.
        """
        if len(self._listeners) >= MAX_LISTENERS:
            raise Busy(f"{MAX_LISTENERS} watch the rounds already", retry_after_seconds=5.0)
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def draft_sums(self) -> list[coordinator_pb2.DraftSums]:
        """Rounds by the fingerprint of their drafter, in the order in which these came."""
        return [sums.to_message(fingerprint) for fingerprint, sums in list(self._drafters.items())]

    def fill(self, response: coordinator_pb2.GetStatsResponse) -> None:
        """Puts all sums into a message."""
        texts = self._texts
        response.num_tokens = self._num_tokens
        response.num_texts, response.num_failed = texts.num_texts, texts.num_failed
        response.prompt_tokens, response.cached_tokens = texts.prompt_tokens, texts.cached_tokens
        response.rounds.extend(
            sums.to_message(source) for source, sums in self._sums.items() if sums.num_rounds
        )
