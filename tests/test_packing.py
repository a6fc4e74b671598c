"""Row, slot and context indices of a step (pitfalls D7, D9, D11)."""

from __future__ import annotations

import torch

from target_service.packing import MAX_RUNS, Extension, context_slots, pack

PAGE = 4
CPU = torch.device("cpu")


def test_rows_of_prefill_verify_and_decode_stay_apart() -> None:
    prefill = Extension((1, 2, 3, 4, 5), 0, (2, 3), 1)
    verify = Extension((6, 7, 8, 9, 10), 6, (0, 7, 5), 5)
    decode = Extension((11,), 3, (9,), 1)
    step = pack([prefill, verify, decode], PAGE, CPU)
    assert step.token_ids.tolist() == list(range(1, 12))
    assert step.positions.tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 3]
    assert step.slots.tolist() == [8, 9, 10, 11, 12, 30, 31, 20, 21, 22, 39]
    assert step.decision_rows.tolist() == [4, 5, 6, 7, 8, 9, 10]
    assert [(span.first_row, span.num_rows) for span in step.spans] == [(0, 5), (5, 5), (10, 1)]


def test_each_row_sees_its_own_past_only() -> None:
    step = pack([Extension((6, 7, 8), 6, (0, 7, 5), 3)], PAGE, CPU)
    mask = step.spans[0].mask
    assert mask is not None
    assert mask.sum(dim=1).tolist() == [7, 8, 9]
    assert bool(mask[0, 6])
    assert not bool(mask[0, 7])


def test_contiguous_pages_are_a_slice() -> None:
    assert context_slots((3, 4, 5), 9, PAGE) == (slice(12, 21),)
    assert context_slots((3, 5), 6, PAGE) == (slice(12, 16), slice(20, 22))
    assert context_slots((7, 8, 1, 2, 3), 20, PAGE) == (slice(28, 36), slice(4, 16))


def test_many_runs_are_gathered() -> None:
    pages = tuple(range(0, 4 * MAX_RUNS, 2))
    scattered = context_slots(pages, 4 * len(pages) - 3, PAGE)
    assert isinstance(scattered, torch.Tensor)
    assert scattered.tolist() == [page * PAGE + i for page in pages for i in range(PAGE)][:-3]


def test_a_chunk_that_does_not_decide_has_no_logits() -> None:
    assert pack([Extension((1, 2), 0, (0,), 0)], PAGE, CPU).decision_rows.tolist() == []
