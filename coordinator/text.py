"""From token ids to text, a token at a time.

The concatenation of all pieces equals one decode of all ids (for byte-level tokenizers; for
decoders that replace a whole run of byte tokens, a character that was complete is never taken
back). No piece ends inside a character: the replacement character appears only for bytes that can
no longer become a character, or for a last one that the end of the text cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

REPLACEMENT = "\ufffd"
# A UTF-8 character lacks at most three bytes, and a token that has text has at least one.
_MAX_MISSING_TOKENS = 3
# Bound on what is held for decoders that are not byte-level.
_MAX_PENDING = 16

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class Piece:
    """Text, and the ids whose text it completes."""

    token_ids: tuple[int, ...]
    text: str


class Detokeniser:
    """Incremental decoding of one text.

    Invariant: everything before `_pending` was released; `_context` is the group released last,
    kept because a decoder may look at its left neighbour; `_context_text` is its decoding.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._context: list[int] = []
        self._context_text = ""
        self._pending: list[int] = []
        # Of the pending ids, the first ones that the reader has already.
        self._num_known = 0

    def prime(self, token_ids: Iterable[int]) -> None:
        """Takes tokens whose text the reader has already."""
        for token_id in token_ids:
            self.push(token_id)
        self._num_known = len(self._pending)

    def push(self, token_id: int) -> Piece | None:
        """Takes one token; returns the piece it completes, if it completes one."""
        self._pending.append(token_id)
        text = self._decode(self._context + self._pending)
        if text.startswith(self._context_text):
            # A token without text (special, or of a target without tokenizer) completes nothing.
            if not text.endswith(REPLACEMENT):
                return self._release(len(self._pending), text)
            if len(self._pending) > _MAX_MISSING_TOKENS:
                return self._release_invalid(text)
        if len(self._pending) >= _MAX_PENDING:
            return self.flush()
        return None

    def flush(self) -> Piece | None:
        """Releases everything, also a character that is not complete."""
        if not self._pending:
            return None
        text = self._decode(self._context + self._pending)
        if not text.startswith(self._context_text):
            text = self._context_text + self._decode(self._pending)
        return self._release(len(self._pending), text)

    def _release_invalid(self, text: str) -> Piece | None:
        """Releases leading tokens whose text no later byte can change.

        More text behind a head that stays as it is shows that the head's last bytes were settled:
        bytes that continue an unfinished character leave the number of replacements as it is.
        """
        for count in range(len(self._pending) - _MAX_MISSING_TOKENS, 0, -1):
            head = self._decode(self._context + self._pending[:count])
            grows = len(self._context_text) < len(head) < len(text)
            if grows and head.startswith(self._context_text) and text.startswith(head):
                return self._release(count, head)
        return None

    def _release(self, count: int, text: str) -> Piece:
        num_known = min(self._num_known, count)
        self._num_known -= num_known
        piece = Piece(tuple(self._pending[num_known:count]), text[len(self._context_text) :])
        self._context = self._pending[:count]
        self._context_text = self._decode(self._context)
        self._pending = self._pending[count:]
        return piece
