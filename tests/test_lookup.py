"""Lookup drafts against a slow twin that searches the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.lookup import MAX_SUFFIX, MIN_SUFFIX, LookupIndex


def slow_propose(tokens: list[int], k: int) -> tuple[int, ...]:
    """The definition: longest suffix first, its most recent earlier occurrence, what followed; where
    that reaches the end of the text, it goes on with itself."""
    for n in range(MAX_SUFFIX, MIN_SUFFIX - 1, -1):
        if len(tokens) <= n:
            continue
        suffix = tokens[-n:]
        for start in range(len(tokens) - n - 1, -1, -1):
            if tokens[start : start + n] == suffix:
                text = list(tokens)
                for index in range(k):
                    text.append(text[start + n + index])
                return tuple(text[len(tokens) :])
    return ()


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(0, 8))
def test_equals_the_slow_twin_at_every_length(tokens: list[int], k: int) -> None:
    index = LookupIndex()
    for length, token in enumerate(tokens):
        index.extend([token])
        expected = slow_propose(tokens[: length + 1], k) if k else ()
        assert index.propose(k) == expected


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(0, 60))
def test_any_chunking_gives_the_same_index(tokens: list[int], split: int) -> None:
    index = LookupIndex(tokens[:split])
    index.extend(tokens[split:])
    assert index.propose(5) == LookupIndex(tokens).propose(5)
    assert len(index) == len(tokens)


@pytest.mark.parametrize(
    ("tokens", "k", "expected"),
    [
        ([], 4, ()),
        ([1], 4, ()),
        ([1, 2, 3, 4], 4, ()),
        ([1, 2, 9, 8, 1, 2], 4, (9, 8, 1, 2)),
        ([1, 2, 9, 8, 1, 2], 1, (9,)),
        ([1, 2, 9, 1, 2, 8, 1, 2], 2, (8, 1)),
        ([5, 1, 2, 9, 6, 1, 2, 8, 5, 1, 2], 1, (9,)),
        ([7, 7, 7], 4, (7, 7, 7, 7)),
        ([0, 0, 5, 0, 0], 4, (5, 0, 0, 5)),
    ],
)
def test_examples(tokens: list[int], k: int, expected: tuple[int, ...]) -> None:
    assert LookupIndex(tokens).propose(k) == expected
