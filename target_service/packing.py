"""Turns planned work into the flat tensors of one forward pass.

N rows over all sequences, R of them decide a token. The rows of a sequence are consecutive:

    positions   kv_length .. kv_length + n - 1
    slots       where their keys and values go: page * page_size + offset
    context     slots of positions 0 .. kv_length + n - 1, this step's rows included
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Extension:
    """One sequence's rows in a step.

    token_ids are the n tokens to feed at positions kv_length..; `num_decisions` of the last rows
    give logits (0 for a prefill chunk that is not the last); pages cover kv_length + n tokens.
    """

    token_ids: tuple[int, ...]
    kv_length: int
    pages: tuple[int, ...]
    num_decisions: int


# Runs of pages that are copied one by one, or read where they lie (`run_attention`); beyond, rows are
# gathered by index.
MAX_RUNS = 16
Context = tuple[slice, ...] | torch.Tensor


@dataclass(frozen=True, eq=False)
class Span:
    """Rows [first_row, first_row + num_rows) attend to `context` (T slots, in position order)."""

    first_row: int
    num_rows: int
    context: Context  # [T]
    mask: torch.Tensor | None  # [num_rows, T] bool, True = visible; None = everything visible
    is_causal: bool  # the plain triangle, when the context is just these rows
    pages: tuple[int, ...]  # those the context lies in
    length: int  # T


@dataclass(frozen=True, eq=False)
class PackedStep:
    token_ids: torch.Tensor  # [N] int64
    positions: torch.Tensor  # [N] int64
    slots: torch.Tensor  # [N] int64
    spans: tuple[Span, ...]
    decision_rows: torch.Tensor  # [R] int64


def context_slots(pages: Sequence[int], length: int, page_size: int) -> Context:
    """Slots of positions 0..length-1.

    Returns:
        Slices where the pages follow one another: one (read without a copy), or a few, as a found
        prefix and its continuation are; a tensor of slots when they are many.
    """
    used = pages[: -(-length // page_size)]
    breaks = [i for i, (before, after) in enumerate(itertools.pairwise(used), 1) if after != before + 1]
    if len(breaks) < MAX_RUNS:
        edges = [0, *breaks, len(used)]
        runs = [(used[first], last - first) for first, last in itertools.pairwise(edges)]
        slices = [slice(page * page_size, (page + count) * page_size) for page, count in runs]
        unused = len(used) * page_size - length
        slices[-1] = slice(slices[-1].start, slices[-1].stop - unused)
        return tuple(slices)
    firsts = torch.tensor(used, dtype=torch.int64)[:, None] * page_size
    return (firsts + torch.arange(page_size)[None, :]).reshape(-1)[:length]


def _span(extension: Extension, first_row: int, page_size: int, device: torch.device) -> Span:
    num_rows = len(extension.token_ids)
    length = extension.kv_length + num_rows
    context = context_slots(extension.pages, length, page_size)
    if isinstance(context, torch.Tensor):
        context = context.to(device)
    mask = None
    if num_rows > 1 and extension.kv_length > 0:
        rows = torch.arange(extension.kv_length, length, device=device)
        mask = torch.arange(length, device=device)[None, :] <= rows[:, None]
    is_causal = num_rows > 1 and extension.kv_length == 0
    pages = extension.pages[: -(-length // page_size)]
    return Span(first_row, num_rows, context, mask, is_causal, pages, length)


def _row_slots(extension: Extension, page_size: int) -> list[int]:
    start, stop = extension.kv_length, extension.kv_length + len(extension.token_ids)
    return [extension.pages[i // page_size] * page_size + i % page_size for i in range(start, stop)]


def pack(extensions: Sequence[Extension], page_size: int, device: torch.device) -> PackedStep:
    """Builds the step's tensors; sequences keep their order."""
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    spans: list[Span] = []
    decision_rows: list[int] = []
    for extension in extensions:
        first_row, num_rows = len(token_ids), len(extension.token_ids)
        token_ids += extension.token_ids
        positions += range(extension.kv_length, extension.kv_length + num_rows)
        slots += _row_slots(extension, page_size)
        spans.append(_span(extension, first_row, page_size, device))
        end = first_row + num_rows
        decision_rows += range(end - extension.num_decisions, end)

    def tensor(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    return PackedStep(
        tensor(token_ids), tensor(positions), tensor(slots), tuple(spans), tensor(decision_rows)
    )
