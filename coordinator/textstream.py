"""Committed tokens in, releasable ids and text out: detokeniser and stop strings together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.stops import StopMatcher
from coordinator.text import Decode, Detokeniser, Piece


@dataclass(frozen=True)
class TextUpdate:
    """What a block of tokens released.

    Args:
        piece: ids and text for the client, either may be empty.
        num_used: tokens of the block that stand; fewer than given when a stop string ended the text.
        stop: the stop string found, or empty.
    """

    piece: Piece
    num_used: int
    stop: str = ""


class TextStream:
    """Committed tokens in, releasable ids and text out.

    Args:
        known_tokens: generated before; the reader has their text.
        min_tokens: so many generated tokens no stop string ends.
    """

    def __init__(
        self, decode: Decode, stops: tuple[str, ...], known_tokens: Sequence[int], min_tokens: int = 0
    ) -> None:
        self._detokeniser = Detokeniser(decode)
        self._matcher = StopMatcher(stops)
        self._detokeniser.prime(known_tokens)
        self._num_immune = min_tokens - len(known_tokens)

    def push(self, tokens: tuple[int, ...]) -> TextUpdate:
        """Takes committed tokens, one after the other, up to the one that completes a stop string."""
        pieces: list[Piece] = []
        for index, token in enumerate(tokens):
            complete = self._detokeniser.push(token)
            self._num_immune -= 1
            if complete is None:
                continue
            scan = self._matcher.push(complete, self._num_immune < 0)
            pieces.append(scan.released)
            if scan.stop:
                return TextUpdate(_joined(pieces), index + 1, scan.stop)
        return TextUpdate(_joined(pieces), len(tokens))

    def flush(self) -> TextUpdate:
        """Releases everything at the end of the text."""
        pieces: list[Piece] = []
        rest = self._detokeniser.flush()
        if rest is not None:
            scan = self._matcher.push(rest, self._num_immune < 0)
            pieces.append(scan.released)
            if scan.stop:
                return TextUpdate(_joined(pieces), 0, scan.stop)
        pieces.append(self._matcher.flush())
        return TextUpdate(_joined(pieces), 0)


def _joined(pieces: list[Piece]) -> Piece:
    if len(pieces) == 1:
        return pieces[0]
    ids = tuple(token_id for piece in pieces for token_id in piece.token_ids)
    return Piece(ids, "".join(piece.text for piece in pieces))
