"""Attention to a long context that lies in several runs of pages, without joining it.

A text that goes on from a found prefix lies where the pages of both are. Joining its runs copies every key
and value of the context in every layer of every step. Here each run is attended to where it lies, and what
came of them is weighed by what the softmax had in each (log-sum-exp; the split softmax of Flash-Decoding and
of https://arxiv.org/abs/2501.01005, 2.2):

    L_i = log sum_j exp(q k_j)  of run i;   out = sum_i out_i exp(L_i) / sum_i exp(L_i)

Shapes: A query heads, C head width, n rows of a sequence, T context.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from target_service.packing import Span
from target_service.paged_kv import PagedKV

# Below, a copy costs no more than the calls; a step of so many rows computes longer than it copies.
LEAST_CONTEXT, LEAST_RUN, MOST_ROWS = 3072, 128, 64


@dataclass(frozen=True, eq=False)
class Piece:
    """Some of a context: one run as it lies, or what is left of several.

    Attributes:
        bias: [n, length], 0 or -inf; None where every row sees all of it.
    """

    runs: tuple[slice, ...]
    bias: torch.Tensor | None


def pieces_of(span: Span, bias: torch.Tensor | None) -> tuple[Piece, ...]:
    """What a span attends to piece by piece; empty where joining is as good.

    Every row sees something of every piece: a softmax over nothing has no value.

    Args:
        bias: [n, T] of the span; None where its one row sees everything.
    """
    runs = span.context
    if isinstance(runs, torch.Tensor) or len(runs) < 2 or span.is_causal:
        return ()
    if span.length < max(LEAST_CONTEXT, LEAST_RUN * len(runs)) or span.num_rows > MOST_ROWS:
        return ()
    # From here on are the rows themselves, which do not all see each other.
    own = span.length - span.num_rows
    before, last = runs[:-1], runs[-1]
    num_before = span.length - (last.stop - last.start)
    if num_before <= own:
        return (*_seen(before), Piece((last,), None if bias is None else bias[:, num_before:]))
    seen, rest = _cut(runs, own)
    return (*_seen(seen), Piece(rest, None if bias is None else bias[:, own:]))


def _seen(runs: tuple[slice, ...]) -> tuple[Piece, ...]:
    return tuple(Piece((run,), None) for run in runs)


def _cut(runs: tuple[slice, ...], length: int) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """The first `length` slots, and the others."""
    first, rest = [], []
    for run in runs:
        middle = min(run.start + length, run.stop)
        length -= middle - run.start
        first += [slice(run.start, middle)] if middle > run.start else []
        rest += [slice(middle, run.stop)] if run.stop > middle else []
    return tuple(first), tuple(rest)


def attend_to_pieces(
    layer: int,
    queries: torch.Tensor,  # [1, A, n, C]
    kv: PagedKV,
    pieces: tuple[Piece, ...],
    scaling: float | None,
) -> torch.Tensor:
    """[1, A, n, C]: as attention to all pieces joined, up to the order of summation."""
    outputs, sums = [], []
    for piece in pieces:
        keys, values = kv.read(layer, piece.runs)
        output, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            queries, keys[None], values[None], 0.0, False, attn_mask=piece.bias, scale=scaling
        )
        outputs.append(output)
        sums.append(log_sum)  # [1, A, n]
    return weighed(torch.stack(outputs), torch.stack(sums)).to(queries.dtype)


def weighed(
    outputs: torch.Tensor,  # [pieces, 1, A, n, C]
    log_sums: torch.Tensor,  # [pieces, 1, A, n]
) -> torch.Tensor:
    """[1, A, n, C]: each piece by its share of the whole softmax."""
    shares = torch.softmax(log_sums, dim=0)[..., None]
    merged: torch.Tensor = (outputs * shares).sum(dim=0)
    return merged
