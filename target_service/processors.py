"""Logit processors: what changes the logits of a row before temperature and filters.

In this order, which is vLLM's: allowed ids, bad words, min_tokens and the grammar (each makes tokens
impossible); logit bias; repetition, frequency and presence penalty. Greedy rows get them too.

Row i of a block has seen its proposals d_1..d_i: it is processed as if they were generated, which is
the text it decides for. Generated tokens count from num_prompt_tokens and are those of the sequence,
so nothing is lost by an eviction or a re-open. Only rows of requests that have processors are
touched.

R rows of the blocks together, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from target_service.commands import SamplingParams
from target_service.grammar import GrammarRows

Pairs = list[tuple[int, int]]  # (row, token)


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """How many tokens there are, and where tensors over them live."""

    size: int
    device: torch.device


class TextState:
    """What one request's processors need of its text, kept from step to step.

    Invariant: the first `_num_counted` tokens of the sequence are in `counts` (if generated) and in
    `seen`.

    Attributes:
        allowed: [V] bool, or None when every token is allowed.
        counts: [V] float32, how often each token was generated; None without penalties.
        seen: [V] bool, whether it occurs in prompt or generated text; None without penalties.
    """

    def __init__(self, params: SamplingParams, num_prompt_tokens: int, vocabulary: Vocabulary) -> None:
        self.params = params
        self.num_prompt_tokens = num_prompt_tokens
        self.allowed: torch.Tensor | None = None
        self.counts: torch.Tensor | None = None
        self.seen: torch.Tensor | None = None
        self._num_counted = 0
        if params.allowed_token_ids:
            self.allowed = torch.zeros(vocabulary.size, dtype=torch.bool, device=vocabulary.device)
            self.allowed[list(params.allowed_token_ids)] = True
        if params.has_penalties:
            self.counts = torch.zeros(vocabulary.size, device=vocabulary.device)
            self.seen = torch.zeros(vocabulary.size, dtype=torch.bool, device=vocabulary.device)

    def catch_up(self, token_ids: Sequence[int]) -> None:
        """Takes the committed tokens that are new since the last call."""
        if self.counts is None or self.seen is None:
            return
        new = torch.tensor(token_ids[self._num_counted :], dtype=torch.int64, device=self.counts.device)
        num_prompt = max(self.num_prompt_tokens - self._num_counted, 0)
        generated = new[num_prompt:]
        self.counts.index_add_(0, generated, torch.ones_like(generated, dtype=self.counts.dtype))
        self.seen[new] = True
        self._num_counted = len(token_ids)


@dataclass(frozen=True, eq=False)
class Block:
    """The rows of one request in a step: row i is decided after generated + proposals[:i].

    Attributes:
        first_row: of the block in the step's logits; 1 + len(proposals) rows follow.
        stop_ids: tokens that end the request.
        grammar: of the same rows, or None without one.
    """

    first_row: int
    state: TextState
    generated: Sequence[int]
    proposals: tuple[int, ...]
    stop_ids: frozenset[int]
    grammar: GrammarRows | None = None

    @property
    def num_rows(self) -> int:
        return 1 + len(self.proposals)


class _Rows:
    """The processed rows, gathered: which block each belongs to, and where each block begins."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.first: list[int] = []
        self.source: list[int] = []
        for block in blocks:
            self.first.append(len(self.source))
            self.source += range(block.first_row, block.first_row + block.num_rows)

    def of(self, blocks: Sequence[Block], chosen: Sequence[int]) -> tuple[list[int], list[int]]:
        """Rows of the chosen blocks, and for each of them its place in `chosen`."""
        rows = [self.first[b] + i for b in chosen for i in range(blocks[b].num_rows)]
        places = [place for place, b in enumerate(chosen) for _ in range(blocks[b].num_rows)]
        return rows, places


def process(logits: torch.Tensor, blocks: Sequence[Block]) -> torch.Tensor:
    """The step's logits with the rows of `blocks` processed; `logits` itself stays as it is.

    Args:
        logits: [N, V] of all rows of the step.
        blocks: of the requests that have processors; each has taken in its committed tokens.

    Returns:
        [N, V] float32 (float64 for float64 logits). A row in which no token is possible is -inf.
    """
    if not blocks:
        return logits
    processed = logits.clone() if logits.dtype == torch.float64 else logits.to(torch.float32, copy=True)
    rows = _Rows(blocks)
    index = torch.tensor(rows.source, device=logits.device)
    some = _penalised(_biased(_masked(processed[index], blocks, rows), blocks, rows), blocks, rows)
    processed[index] = some
    return processed


def _masked(some: torch.Tensor, blocks: Sequence[Block], rows: _Rows) -> torch.Tensor:
    allowed = [(b, block.state.allowed) for b, block in enumerate(blocks)]
    limited = [(b, mask) for b, mask in allowed if mask is not None]
    if limited:
        chosen, places = rows.of(blocks, [b for b, _ in limited])
        masks = torch.stack([mask for _, mask in limited])  # [blocks, V]
        some[chosen] = some[chosen].masked_fill(~masks[places], -torch.inf)
    for b, block in enumerate(blocks):
        if block.grammar is not None:
            span = slice(rows.first[b], rows.first[b] + block.num_rows)
            mask = block.grammar.allowed.to(some.device)
            some[span] = some[span].masked_fill(~mask, -torch.inf)
    banned: Pairs = []
    for b, block in enumerate(blocks):
        for i in range(block.num_rows):
            row = rows.first[b] + i
            banned += [(row, token) for token in banned_tokens(block, i)]
    if banned:
        where = torch.tensor(banned, device=some.device)
        some[where[:, 0], where[:, 1]] = -torch.inf
    return some


def banned_tokens(block: Block, row: int) -> list[int]:
    """Tokens that row `row` must not decide: ends of bad words, and stops before min_tokens."""
    params = block.state.params
    banned: list[int] = []
    # A text that its grammar has completed cannot grow to min_tokens.
    is_over = block.grammar is not None and block.grammar.is_over[row]
    if len(block.generated) + row < params.min_tokens and not is_over:
        banned += block.stop_ids  # all of them in the vocabulary
    if params.bad_words:
        longest = max(map(len, params.bad_words)) - 1
        text = (*block.generated[max(len(block.generated) - longest, 0) :], *block.proposals[:row])
        banned += [word[-1] for word in params.bad_words if _ends_with(text, word[:-1])]
    return banned


def _ends_with(text: tuple[int, ...], start: tuple[int, ...]) -> bool:
    return len(start) <= len(text) and text[len(text) - len(start) :] == start


def _biased(some: torch.Tensor, blocks: Sequence[Block], rows: _Rows) -> torch.Tensor:
    where: Pairs = []
    values: list[float] = []
    for b, block in enumerate(blocks):
        for token, bias in block.state.params.logit_bias:
            where += [(rows.first[b] + i, token) for i in range(block.num_rows)]
            values += [bias] * block.num_rows
    if where:
        index = torch.tensor(where, device=some.device)
        bias_values = torch.tensor(values, dtype=some.dtype, device=some.device)
        some.index_put_((index[:, 0], index[:, 1]), bias_values, accumulate=True)
    return some


def _penalised(some: torch.Tensor, blocks: Sequence[Block], rows: _Rows) -> torch.Tensor:
    counted = [b for b, block in enumerate(blocks) if block.state.counts is not None]
    if not counted:
        return some
    chosen, places = rows.of(blocks, counted)
    counts = torch.stack([c for b in counted if (c := blocks[b].state.counts) is not None])[places]
    seen = torch.stack([s for b in counted if (s := blocks[b].state.seen) is not None])[places]
    # Row i counts d_1 .. d_i of its own block on top of the committed text.
    own = [(b, i) for b in counted for i in range(blocks[b].num_rows)]
    proposed = [(row, token) for row, (b, i) in enumerate(own) for token in blocks[b].proposals[:i]]
    if proposed:
        where = torch.tensor(proposed, device=some.device)
        ones = torch.ones(len(proposed), device=some.device)
        counts.index_put_((where[:, 0], where[:, 1]), ones, accumulate=True)
        seen[where[:, 0], where[:, 1]] = True

    def column(name: str) -> torch.Tensor:
        values = [getattr(blocks[b].state.params, name) for b, _ in own]
        return torch.tensor(values, dtype=some.dtype, device=some.device)[:, None]

    values = some[chosen]
    factor = column("repetition_penalty")
    values = torch.where(seen, torch.where(values > 0, values / factor, values * factor), values)
    values -= column("frequency_penalty") * counts + column("presence_penalty") * (counts > 0)
    some[chosen] = values
    return some
