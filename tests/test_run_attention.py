"""Attention to runs of pages where they lie: the same as to the runs joined, which is its slow twin."""

from __future__ import annotations

import random

import pytest
import torch

from target_service import run_attention
from target_service.attention import StepContext, attend
from target_service.packing import Extension, PackedStep, pack
from target_service.paged_kv import KVShape, PagedKV
from tests.fakes import Driver, params, plain_greedy, tiny_engine, tiny_target

PAGE, HEADS, QUERY_HEADS, WIDTH = 4, 2, 6, 8
CPU = torch.device("cpu")


def kv_of(num_pages: int, dtype: torch.dtype = torch.float64) -> PagedKV:
    kv = PagedKV(KVShape(1, HEADS, WIDTH, dtype), num_pages, PAGE, CPU)
    torch.manual_seed(1)
    kv.keys.normal_()
    kv.values.normal_()
    return kv


def attended(kv: PagedKV, step: PackedStep) -> torch.Tensor:
    torch.manual_seed(2)
    num_rows = len(step.token_ids)
    dtype = kv.shape.dtype
    heads = [torch.randn(n, num_rows, WIDTH, dtype=dtype) for n in (QUERY_HEADS, HEADS, HEADS)]
    return attend(0, (heads[0], heads[1], heads[2]), StepContext.of(step, kv), None)


def in_pieces(monkeypatch: pytest.MonkeyPatch, least: int) -> None:
    monkeypatch.setattr(run_attention, "LEAST_CONTEXT", least)
    monkeypatch.setattr(run_attention, "LEAST_RUN", 1)


@pytest.mark.parametrize("seed", range(40))
def test_pieces_are_the_context_joined(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any runs, any number of rows, and rows that begin in one run and end in another."""
    draw = random.Random(seed)
    extensions, free = [], draw.sample(range(60), 60)
    for _ in range(draw.randint(1, 3)):
        pages = sorted(free.pop() for _ in range(draw.randint(3, 12)))
        num_rows = draw.randint(1, 9)
        length = draw.randint((len(pages) - 1) * PAGE + 1, len(pages) * PAGE)
        kv_length = max(length - num_rows, 1)
        extensions.append(Extension((0,) * (length - kv_length), kv_length, tuple(pages), 1))
    step = pack(extensions, PAGE, CPU)
    joined = attended(kv_of(60), step)
    in_pieces(monkeypatch, 0)
    pieces = StepContext.of(step, kv_of(60)).pieces
    several = [isinstance(span.context, tuple) and len(span.context) > 1 for span in step.spans]
    assert [bool(each) for each in pieces] == several
    torch.testing.assert_close(attended(kv_of(60), step), joined, rtol=0.0, atol=1e-13)


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-5), (torch.bfloat16, 0.02)])
def test_other_types_differ_by_their_rounding(
    dtype: torch.dtype, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = pack([Extension((1, 2, 3), 37, (*range(6), *range(12, 16)), 3)], PAGE, CPU)
    joined = attended(kv_of(60, dtype), step)
    in_pieces(monkeypatch, 0)
    found = attended(kv_of(60, dtype), step)
    assert found.dtype is dtype
    torch.testing.assert_close(found, joined, rtol=0.0, atol=most)


def test_rows_that_lie_in_two_runs_see_themselves_and_those_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece of which a row sees nothing would have no value."""
    in_pieces(monkeypatch, 0)
    step = pack([Extension((1, 2, 3), 6, (0, 7, 5), 3)], PAGE, CPU)
    (pieces,) = StepContext.of(step, kv_of(8)).pieces
    assert [piece.runs for piece in pieces] == [
        (slice(0, 4),),
        (slice(28, 30),),
        (slice(30, 32), slice(20, 21)),
    ]
    assert bool(torch.isfinite(attended(kv_of(8), step)).all())


def test_short_contexts_short_runs_and_prefill_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    def pieces(length: int, pages: list[int], num_rows: int) -> tuple[run_attention.Piece, ...]:
        step = pack([Extension((0,) * num_rows, length - num_rows, tuple(pages), 1)], 16, CPU)
        (found,) = StepContext.of(step, PagedKV(KVShape(1, 1, 1, torch.float32), 1, 16, CPU)).pieces
        return found

    two_runs = [*range(100), *range(110, 210)]
    assert len(pieces(3200, two_runs, 8)) == 2
    assert pieces(3000, two_runs, 8) == ()
    assert pieces(3200, list(range(200)), 8) == (), "one run is read where it lies"
    assert pieces(3200, two_runs, 128) == (), "a prompt's chunk"
    monkeypatch.setattr(run_attention, "LEAST_CONTEXT", 1024)
    many = [page for first in range(0, 160, 10) for page in range(first, first + 5)]
    assert pieces(1280, many, 8) == (), "runs of five pages"


def test_a_text_behind_a_found_prefix_is_plain_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the engine: the second text's pages are the first one's prefix and others far from it."""
    in_pieces(monkeypatch, 8)
    calls = []
    original = run_attention.attend_to_pieces

    def counted(*args: object) -> torch.Tensor:
        calls.append(args)
        return original(*args)  # type: ignore[arg-type]

    monkeypatch.setattr("target_service.attention.attend_to_pieces", counted)
    stock = tiny_target("qwen3")
    engine = tiny_engine(stock)
    prompt = [(7 * i + i * i) % 61 for i in range(40)]
    first, second = prompt, [*prompt[:32], *range(9)]
    texts = [(Driver(engine, "first"), first), (Driver(engine, "second"), second)]
    for driver, tokens in texts:
        driver.open(tokens, params(12))
    for driver, tokens in texts:
        reference = plain_greedy(stock, tokens, 12)
        while len(driver.generated) < 8:
            right = reference[len(driver.generated)]
            driver.verify([right, 60, 60])
        assert driver.generated == reference[: len(driver.generated)]
    assert calls
