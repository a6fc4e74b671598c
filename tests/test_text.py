"""Incremental text and stop strings, with byte-level tokens that split characters."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from coordinator.stops import StopMatcher
from coordinator.text import REPLACEMENT, Detokeniser, Piece
from coordinator.textstream import TextStream
from tests.coordinator_fakes import make_tokenizer

SAMPLE = "日本 👍🏽 é — e\u0301 naïve 한국어 🇩🇪 text with plain words, and plain words again\n"


@lru_cache
def byte_tokenizer() -> Tokenizer:
    return make_tokenizer()


@lru_cache
def merged_tokenizer() -> Tokenizer:
    """A byte-level BPE whose merges cross character borders."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        special_tokens=["<|end|>"],
    )
    tokenizer.train_from_iterator([SAMPLE, "👍🏽👍🏽 本日 日 é", "a👍b👍c日d本"], trainer)
    return tokenizer


TOKENIZERS = {"bytes": byte_tokenizer, "merged": merged_tokenizer}


def decode_with(tokenizer: Tokenizer, token_ids: Sequence[int]) -> str:
    text: str = tokenizer.decode(list(token_ids), skip_special_tokens=True)
    return text


def pieces_of(tokenizer: Tokenizer, token_ids: Sequence[int]) -> list[Piece]:
    detokeniser = Detokeniser(lambda ids: decode_with(tokenizer, ids))
    pieces = [piece for token_id in token_ids if (piece := detokeniser.push(token_id)) is not None]
    rest = detokeniser.flush()
    return [*pieces, rest] if rest is not None else pieces


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=st.text(max_size=40), cut=st.integers(0, 6))
def test_concatenation_is_the_one_shot_decoding(name: str, text: str, cut: int) -> None:
    tokenizer = TOKENIZERS[name]()
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    ids = ids[: len(ids) - cut] if cut else ids
    pieces = pieces_of(tokenizer, ids)
    assert "".join(piece.text for piece in pieces) == decode_with(tokenizer, ids)
    assert [token_id for piece in pieces for token_id in piece.token_ids] == ids
    if REPLACEMENT not in text:
        assert not any(REPLACEMENT in piece.text for piece in pieces[:-1])


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
def test_random_ids_too(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]()
    ids = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), max_size=40))
    pieces = pieces_of(tokenizer, ids)
    assert "".join(piece.text for piece in pieces) == decode_with(tokenizer, ids)
    assert [token_id for piece in pieces for token_id in piece.token_ids] == ids


def test_garbage_is_not_held_for_ever() -> None:
    tokenizer = byte_tokenizer()
    lone = tokenizer.encode("本").ids[1]
    detokeniser = Detokeniser(lambda ids: decode_with(tokenizer, ids))
    num_released = sum(len(piece.token_ids) for _ in range(50) if (piece := detokeniser.push(lone)))
    assert num_released >= 46


@pytest.mark.parametrize("name", TOKENIZERS)
def test_ids_come_with_the_text_they_complete(name: str) -> None:
    tokenizer = TOKENIZERS[name]()
    ids = tokenizer.encode(SAMPLE, add_special_tokens=False).ids
    num_ids = 0
    text = ""
    for piece in pieces_of(tokenizer, ids):
        num_ids += len(piece.token_ids)
        text += piece.text
        assert text == decode_with(tokenizer, ids[:num_ids])
        assert not text.endswith(REPLACEMENT)


def test_known_tokens_give_no_text_again() -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode("日本x").ids
    for known in range(len(ids)):
        detokeniser = Detokeniser(lambda some: decode_with(tokenizer, some))
        detokeniser.prime(ids[:known])
        pieces = [piece for token_id in ids[known:] if (piece := detokeniser.push(token_id))]
        assert [token_id for piece in pieces for token_id in piece.token_ids] == ids[known:]
        shown = decode_with(tokenizer, ids[:known]).rstrip(REPLACEMENT)
        assert shown + "".join(piece.text for piece in pieces) == "日本x"


def slow_cut(text: str, stops: Sequence[str]) -> tuple[str, int, str]:
    """Text before the match that ends first, the end of that match, and the stop string."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], end, longest
    return text, len(text), ""


LETTERS = st.text(alphabet="ab\n", max_size=20)


@given(text=LETTERS, stops=st.lists(LETTERS.filter(bool), max_size=3), seed=st.integers(0, 1000))
def test_stops_equal_the_slow_twin_for_any_chunking(text: str, stops: list[str], seed: int) -> None:
    rng = random.Random(seed)
    matcher = StopMatcher(tuple(stops))
    expected, end, stop = slow_cut(text, stops)
    position, shown, found, num_ids = 0, "", "", 0
    while position < len(text) and not found:
        size = 1 if stop else rng.randint(0, 3)
        scan = matcher.push(Piece((position,), text[position : position + size]))
        position += size
        shown += scan.released.text
        num_ids += len(scan.released.token_ids)
        found = scan.stop
        assert expected.startswith(shown), "text was shown that belongs to a stop string"
    if not found:
        shown += matcher.flush().text
    assert (shown, found) == (expected, stop)
    if found:
        assert num_ids == end


def stream(stops: Sequence[str] = ()) -> TextStream:
    return TextStream(lambda ids: decode_with(byte_tokenizer(), ids), tuple(stops), ())


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_half_a_stop_string_is_never_shown(size: int) -> None:
    ids = byte_tokenizer().encode("the brown fox jumps").ids
    text, shown, update = stream(["own fox"]), "", None
    for begin in range(0, len(ids), size):
        update = text.push(tuple(ids[begin : begin + size]))
        shown += update.piece.text
        if update.stop:
            assert begin + update.num_used == len("the brown fox")
            break
    assert shown == "the br"
    assert update is not None
    assert update.stop == "own fox"


def test_ids_are_cut_after_the_token_that_completes_the_match() -> None:
    ids = byte_tokenizer().encode("xbcdefghi").ids
    update = stream(["b"]).push(tuple(ids))
    assert update.piece == Piece(tuple(ids[:2]), "x")
    assert update.num_used == 2


def test_held_text_is_flushed() -> None:
    ids = byte_tokenizer().encode("UNO DUE TRE").ids
    text = stream(["TRE\nAAAA"])
    shown = text.push(tuple(ids)).piece
    rest = text.flush().piece
    assert shown.text == "UNO DUE "
    assert shown.text + rest.text == "UNO DUE TRE"
    assert shown.token_ids + rest.token_ids == tuple(ids)


def test_a_special_token_has_no_text_and_is_released_at_the_end() -> None:
    end = byte_tokenizer().token_to_id("<|end|>")
    ids = (*byte_tokenizer().encode("ab").ids, end)
    text = stream()
    first, rest = text.push(ids).piece, text.flush().piece
    assert first.text + rest.text == "ab"
    assert first.token_ids + rest.token_ids == ids


@pytest.mark.parametrize("size", [1, 2, 5, 40])
def test_no_stop_string_ends_the_first_min_tokens(size: int) -> None:
    """A match that ends within them is passed over for good; one that only begins there counts."""
    text = "ab xxab ab"
    tokens = byte_tokenizer().encode(text).ids
    assert len(tokens) == len(text)
    for stops, min_tokens, expected in (
        (("ab",), 0, ("", "ab", 2)),
        (("ab",), 2, ("ab xx", "ab", 7)),
        (("ab",), 1, ("", "ab", 2)),
        (("ab",), 7, ("ab xxab ", "ab", 10)),
        (("ab", "xxab a!"), 7, ("ab xxab ", "ab", 10)),
        (("b x",), 3, ("a", "b x", 4)),
        (("ab",), 10, (text, "", 10)),
    ):
        one = TextStream(lambda ids: decode_with(byte_tokenizer(), ids), stops, (), min_tokens)
        said, used, stop = "", 0, ""
        for start in range(0, len(tokens), size):
            update = one.push(tuple(tokens[start : start + size]))
            said, used, stop = said + update.piece.text, used + update.num_used, update.stop
            if stop:
                break
        else:
            said += one.flush().piece.text
        assert (said, stop, used) == expected, (stops, min_tokens)


def test_min_tokens_of_a_resumed_text_counts_what_was_there() -> None:
    tokens = byte_tokenizer().encode("abab").ids
    one = TextStream(lambda ids: decode_with(byte_tokenizer(), ids), ("ab",), tuple(tokens[:2]), 3)
    assert one.push(tuple(tokens[2:])).stop == "ab"
    other = TextStream(lambda ids: decode_with(byte_tokenizer(), ids), ("ab",), tuple(tokens[:2]), 4)
    assert other.push(tuple(tokens[2:])).stop == ""
