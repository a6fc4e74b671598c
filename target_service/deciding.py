"""From the logits of a step to what each of its sequences decides. Pure, apart from counting tokens.

The rows of all sequences go through every stage together: processors, law, draw, log-probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from target_service.commands import Verify
from target_service.logprobs import PositionLogprobs, position_logprobs
from target_service.processors import Block, TextState, Vocabulary, process
from target_service.rejection import Draft
from target_service.sampling import RowParams, choose, without_dead_ends
from target_service.sequence import Sequence as Request
from target_service.verification import Decision, decide


@dataclass(frozen=True)
class Outcome:
    """What a round decides, with the log-probabilities of its tokens if they were asked for."""

    decision: Decision
    logprobs: tuple[PositionLogprobs, ...] = ()


def decide_step(
    sequences: Sequence[Request],
    logits: torch.Tensor,  # [R, V]
    eos_ids: frozenset[int],
) -> list[Outcome]:
    """One outcome for each sequence.

    Args:
        sequences: each decides 1 + len(proposals) rows, in this order.
        logits: raw, of these R rows.
        eos_ids: the model's end-of-text ids.
    """
    if not sequences:
        return []
    blocks = _blocks(sequences, Vocabulary(logits.shape[-1], logits.device), eos_ids)
    processed = process(logits, blocks)
    rows = [row for sequence in sequences for row in decision_rows(sequence)]
    tokens = choose(processed, rows).tokens
    if blocks:
        tokens = without_dead_ends(tokens, processed)
    choices = tokens.tolist()
    decisions: list[Decision] = []
    first = 0
    for sequence in sequences:
        last = first + 1 + len(sequence.proposals)
        decisions.append(decide(choices[first:last], sequence.proposals, sequence.limits(eos_ids)))
        first = last
    logprobs = _logprobs(sequences, decisions, logits)
    return [Outcome(decision, some) for decision, some in zip(decisions, logprobs, strict=True)]


def decision_rows(sequence: Request) -> list[RowParams]:
    """Row i of a round decides position committed_length + i."""
    first, proposals = sequence.committed_length, sequence.proposals
    drafts: list[Draft | None] = [None] * (1 + len(proposals))
    command = sequence.active.command if sequence.active is not None else None
    if sequence.params.uses_rejection and isinstance(command, Verify):
        drafts[: len(proposals)] = map(Draft, proposals, command.laws)
    return [
        RowParams(sequence.params, sequence.sampling_key, first + i, draft) for i, draft in enumerate(drafts)
    ]


def note_prompt_rows(sequence: Request, logits: torch.Tensor) -> None:
    """Notes the log-probabilities of the prompt tokens that come after these rows.

    Args:
        sequence: wants them; after an eviction some are computed and skipped a second time.
        logits: raw [n, V], of positions kv_length .. kv_length + n.
    """
    known, start = len(sequence.prompt_logprobs), sequence.kv_length + 1  # position of the first law
    tokens = sequence.token_ids[known : min(start + len(logits), sequence.num_prompt_tokens)]
    rows = logits[known - start : known - start + len(tokens)]
    sequence.prompt_logprobs += position_logprobs(rows, tokens, [sequence.params.top_logprobs] * len(tokens))


def _blocks(sequences: Sequence[Request], vocabulary: Vocabulary, eos_ids: frozenset[int]) -> list[Block]:
    blocks: list[Block] = []
    first = 0
    for sequence in sequences:
        if sequence.params.has_processors or sequence.matcher is not None:
            if sequence.text_state is None:
                sequence.text_state = TextState(sequence.params, sequence.num_prompt_tokens, vocabulary)
            sequence.text_state.catch_up(sequence.token_ids)
            generated = sequence.token_ids[sequence.num_prompt_tokens :]
            stop_ids = frozenset(t for t in sequence.limits(eos_ids).stop_ids if t < vocabulary.size)
            matcher, proposals = sequence.matcher, sequence.proposals
            grammar = matcher.rows(proposals) if matcher is not None else None
            blocks.append(Block(first, sequence.text_state, generated, proposals, stop_ids, grammar))
        first += 1 + len(sequence.proposals)
    return blocks


def _logprobs(
    sequences: Sequence[Request], decisions: Sequence[Decision], logits: torch.Tensor
) -> list[tuple[PositionLogprobs, ...]]:
    """Of the committed tokens of those sequences that want them, from one softmax."""
    rows: list[int] = []
    tokens: list[int] = []
    num_top: list[int] = []
    first = 0
    for sequence, decision in zip(sequences, decisions, strict=True):
        if sequence.params.logprobs:
            rows += range(first, first + len(decision.tokens))
            tokens += decision.tokens
            num_top += [sequence.params.top_logprobs] * len(decision.tokens)
        first += 1 + len(sequence.proposals)
    found = iter(position_logprobs(logits[rows], tokens, num_top) if rows else ())
    return [
        tuple(next(found) for _ in decision.tokens) if sequence.params.logprobs else ()
        for sequence, decision in zip(sequences, decisions, strict=True)
    ]
