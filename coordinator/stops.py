"""Stop strings in streamed text: what might still become one is held back.

The match that ends first counts; of those that end at the same character, the longest. The text is
cut where it begins, the ids after the token that completes it.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.text import Piece


@dataclass(frozen=True)
class Scan:
    """What a piece released, and the stop string that it completed (empty: none)."""

    released: Piece
    stop: str = ""


class StopMatcher:
    """Scans the text of one request.

    Invariant: `_text` is the text not yet released, and no stop string ends in it behind `_immune`;
    `_marks` are the ids not yet released, each with the offset in `_text` where its text ends.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._text = ""
        self._marks: list[tuple[int, tuple[int, ...]]] = []
        # Stop strings that end before this offset came too early to count.
        self._immune = 0

    def push(self, piece: Piece, may_stop: bool = True) -> Scan:
        """Takes one piece; after a match nothing may be pushed.

        Args:
            may_stop: False for text within min_tokens, which no stop string ends.
        """
        if not self._stops:
            return Scan(piece)
        self._text += piece.text
        self._marks.append((len(self._text), piece.token_ids))
        if not may_stop:
            self._immune = len(self._text)
        match = self._first_match()
        if match is not None:
            start, stop = match
            ids = tuple(token_id for _, token_ids in self._marks for token_id in token_ids)
            return Scan(Piece(ids, self._text[:start]), stop)
        return Scan(self._release(len(self._text) - self._num_held()))

    def flush(self) -> Piece:
        """Releases what was held back."""
        return self._release(len(self._text))

    def _first_match(self) -> tuple[int, str] | None:
        found = [(self._text.find(stop, max(self._immune - len(stop) + 1, 0)), stop) for stop in self._stops]
        matches = [(start + len(stop), start, stop) for start, stop in found if start >= 0]
        if not matches:
            return None
        _, start, stop = min(matches)
        return start, stop

    def _num_held(self) -> int:
        """Length of the longest end of the text that begins a stop string."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(self._text)), longest, -1):
                if self._text.endswith(stop[:length]):
                    longest = length
                    break
        return longest

    def _release(self, length: int) -> Piece:
        done = [token_ids for end, token_ids in self._marks if end <= length]
        self._marks = [(end - length, token_ids) for end, token_ids in self._marks if end > length]
        text, self._text = self._text[:length], self._text[length:]
        self._immune = max(self._immune - length, 0)
        return Piece(tuple(token_id for token_ids in done for token_id in token_ids), text)
