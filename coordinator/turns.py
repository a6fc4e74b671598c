"""Turns of a conversation that goes on: the exact ids of what was there stay, only the rest is tokenised.

Text that a model wrote token by token may tokenise to other ids when it comes back as text. With other
ids the target would compute the answer again, and would read something else than it had written.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.tokenizer import Tokenizer

# What a turn takes beside its ids.
_TURN_BYTES = 200
# A decoded prefix may end in an incomplete character of so many tokens at most.
_MAX_CUT_TOKENS = 4


@dataclass(frozen=True, eq=False)
class Turn:
    """One rendered prompt and the answer to it.

    Args:
        num_chars, digest: of the prompt's text.
        token_ids: prompt and answer; the first `num_prompt_tokens` are the prompt.
    """

    num_chars: int
    digest: bytes
    token_ids: array[int]
    num_prompt_tokens: int

    @classmethod
    def of(cls, text: str, token_ids: Sequence[int], num_prompt_tokens: int) -> Turn:
        """The turn of a prompt's rendered text and all its committed tokens."""
        return cls(len(text), _digest(text), array("I", token_ids), num_prompt_tokens)

    @property
    def num_bytes(self) -> int:
        return self.token_ids.itemsize * len(self.token_ids) + _TURN_BYTES

    def is_prompt_of(self, text: str) -> bool:
        """Whether the text begins with this turn's prompt."""
        return len(text) >= self.num_chars and _digest(text[: self.num_chars]) == self.digest


def continue_turns(turns: Sequence[Turn], text: str, tokenizer: Tokenizer) -> list[int] | None:
    """Ids of a rendered conversation that goes on from one of the turns; None when it does not.

    Of several it is the one with the longest prompt, and then the one whose answer is repeated farthest.
    """
    known = [turn for turn in turns if turn.is_prompt_of(text)]
    if not known:
        return None
    longest = max(turn.num_chars for turn in known)
    rest = text[longest:]
    kept = [
        (turn, find_repeated(turn.token_ids[turn.num_prompt_tokens :], rest, tokenizer))
        for turn in known
        if turn.num_chars == longest
    ]
    turn, repeated = max(kept, key=lambda pair: pair[1].num_tokens)
    ids = turn.token_ids[: turn.num_prompt_tokens + repeated.num_tokens].tolist()
    return ids + tokenizer.encode_rendered(rest[repeated.num_chars :])


@dataclass(frozen=True)
class Repeated:
    """How much of an answer a text repeats from its beginning: ids, and the characters they stand for."""

    num_tokens: int
    num_chars: int


def find_repeated(answer: Sequence[int], text: str, tokenizer: Tokenizer) -> Repeated:
    """The longest beginning of an answer that the text repeats.

    The reader of an answer sees no special tokens. Those inside stay; those at its end stay if the
    template writes them (as it does the end of a message).
    """
    count = _num_visible(answer, text, tokenizer)
    num_chars = len(tokenizer.decode(answer[:count]))
    first = count
    while first and tokenizer.decode(answer[first - 1 : first]) != tokenizer.decode_exact(
        answer[first - 1 : first]
    ):
        first -= 1
    ending = tokenizer.decode_exact(answer[first:count])
    if text.startswith(ending, num_chars):
        return Repeated(count, num_chars + len(ending))
    return Repeated(first, num_chars)


def _num_visible(answer: Sequence[int], text: str, tokenizer: Tokenizer) -> int:
    """How many ids have a text that the given one begins with."""
    whole = tokenizer.decode(answer)
    if text.startswith(whole):
        return len(answer)
    num_chars = _common_prefix(whole, text)
    low, high = 0, len(answer)
    while low < high:
        middle = (low + high + 1) // 2
        if len(tokenizer.decode(answer[:middle])) <= num_chars:
            low = middle
        else:
            high = middle - 1
    for count in range(low, max(low - _MAX_CUT_TOKENS, 0), -1):
        if text.startswith(tokenizer.decode(answer[:count])):
            return count
    return 0


def _common_prefix(one: str, other: str) -> int:
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return index
    return min(len(one), len(other))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
