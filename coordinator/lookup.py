"""Lookup drafts: agents copy all the time, so what followed the same tokens before is offered again.

The proposal is the continuation of the most recent earlier occurrence of the longest suffix of
2 to 4 committed tokens that occurred before. It needs no model and no features. Where the
continuation reaches the end of the text it goes on with itself (as in LZ77), so text that repeats
with a short period fills a whole block.
"""

from __future__ import annotations

from collections.abc import Iterable

MIN_SUFFIX = 2
MAX_SUFFIX = 4


class LookupIndex:
    """An index over the committed tokens of one request; O(1) a token.

    Invariant: `_ends[n][gram]` is the index just behind the most recent occurrence of the n-gram
    that has at least one token behind it.
    """

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._tokens: list[int] = []
        self._ends: dict[int, dict[tuple[int, ...], int]] = {n: {} for n in range(MIN_SUFFIX, MAX_SUFFIX + 1)}
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self._tokens)

    def copy(self) -> LookupIndex:
        """An index over the same tokens that grows on its own."""
        copied = LookupIndex()
        copied._tokens = self._tokens.copy()
        copied._ends = {n: ends.copy() for n, ends in self._ends.items()}
        return copied

    def extend(self, tokens: Iterable[int]) -> None:
        """Appends committed tokens."""
        for token in tokens:
            end = len(self._tokens)
            # Only now has the gram that ends here a continuation.
            for n, ends in self._ends.items():
                if end >= n:
                    ends[tuple(self._tokens[end - n : end])] = end
            self._tokens.append(token)

    def propose(self, k: int) -> tuple[int, ...]:
        """k tokens when there is a match, else nothing."""
        return self.find(k)[0]

    def find(self, k: int) -> tuple[tuple[int, ...], int]:
        """k tokens and the length of the match; nothing and 0 without one."""
        length = len(self._tokens)
        if k <= 0:
            return (), 0
        for n in range(MAX_SUFFIX, MIN_SUFFIX - 1, -1):
            if length < n:
                continue
            end = self._ends[n].get(tuple(self._tokens[length - n :]))
            if end is not None:
                period = length - end
                return tuple(self._tokens[end + i % period] for i in range(k)), n
        return (), 0
