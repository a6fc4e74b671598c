"""What a decided round changes in its sequence, and the events that tell of it.

`advance` is the only place where committed tokens, KV length and pivot features move:

    before   kv_length = n, committed n + 1, step computed rows n .. n + 1 + k
    after    committed n + 1 + len(tokens), kv_length = n + 1 + A, pivot = row A
"""

from __future__ import annotations

from concurrent.futures import Future

import torch

from protos.errors import InvalidRequest
from target_service.commands import (
    Command,
    Event,
    Features,
    Fetch,
    FinishReason,
    Open,
    RefusalCode,
    Refused,
    Run,
    Verdict,
)
from target_service.deciding import Outcome
from target_service.grammars import Maker
from target_service.sequence import Answer, Sequence


def _wants_features(sequence: Sequence) -> bool:
    assert sequence.active is not None
    command = sequence.active.command
    return isinstance(command, Fetch) or (command.want_features and sequence.finish_reason is None)


def advance(
    sequence: Sequence,
    outcome: Outcome,
    features: torch.Tensor,  # [v, m, D]
    now: float,
) -> list[Event]:
    """Commits the outcome of one decided round (of one token of a Run).

    Args:
        sequence: its KV holds the step's rows already; kv_length is still the old one.
        outcome: of the v rows.
        features: pivot features of the v rows.
        now: seconds, the engine's clock.

    Returns:
        The verdict, and the features if they were wanted; a refusal at a dead end.
    """
    assert sequence.active is not None
    proposals, decision = sequence.proposals, outcome.decision
    if not decision.tokens:
        return [_dead_end(sequence)]
    committed_before = sequence.committed_length
    sequence.token_ids += decision.tokens
    sequence.kv_length = committed_before + len(decision.tokens) - 1
    sequence.finish_reason = decision.finish_reason
    if sequence.matcher is not None:
        sequence.matcher.advance(decision.tokens)
    sequence.pivot_features = None
    if decision.finish_reason is None:
        sequence.pivot_features = features[decision.num_accepted].clone()
    is_open, asks_prompt = isinstance(sequence.active.command, Open), sequence.params.prompt_logprobs
    verdict = Verdict(
        address=sequence.active.command.address,
        committed_length=sequence.committed_length,
        tokens=decision.tokens,
        num_accepted=decision.num_accepted,
        num_verified=len(proposals),
        finish_reason=decision.finish_reason,
        timing=sequence.active.timing(now),
        recomputed_tokens=sequence.take_recomputed(),
        cached_tokens=sequence.cached_tokens if is_open else 0,
        logprobs=outcome.logprobs,
        forced_tokens=_forced(sequence),
        prompt_logprobs=tuple(sequence.prompt_logprobs) if is_open and asks_prompt else (),
    )
    if isinstance(sequence.active.command, Run):
        return _advance_run(sequence, verdict, now)
    return _finish(sequence, verdict)


def _forced(sequence: Sequence) -> tuple[int, ...]:
    if sequence.matcher is None or sequence.finish_reason is not None:
        return ()
    return sequence.matcher.forced()


def _advance_run(sequence: Sequence, verdict: Verdict, now: float) -> list[Event]:
    assert sequence.active is not None
    assert isinstance(sequence.active.command, Run)
    sequence.active.tokens += verdict.tokens
    sequence.active.logprobs += verdict.logprobs
    is_last = len(sequence.active.tokens) >= sequence.active.command.max_tokens
    if is_last or sequence.finish_reason is not None:
        return end_run(sequence, now, last=verdict)
    sequence.active.restart(now)
    return [verdict.as_partial()]


def end_run(sequence: Sequence, now: float, last: Verdict | None = None) -> list[Event]:
    """Ends the active Run with its last verdict; on a Hold that is one without tokens.

    The stored answer is one verdict with all tokens of the Run.
    """
    assert sequence.active is not None
    active = sequence.active
    if last is None:
        last = Verdict(active.command.address, sequence.committed_length, (), timing=active.timing(now))
    events: list[Event] = [last]
    whole = last.with_tokens(tuple(active.tokens), tuple(active.logprobs))
    features = sequence.pivot_features if _wants_features(sequence) else None
    if features is not None:
        events.append(Features(last.address, features))
    sequence.finish_round(Answer(whole, features))
    return events


def attach_grammar(sequence: Sequence, grammar: Future[Maker]) -> list[Event]:
    """Gives a sequence its compiled grammar, which takes in what is generated already."""
    try:
        sequence.matcher = grammar.result()()
    except InvalidRequest as error:
        return [refuse(sequence, error.field, error.message)]
    generated = sequence.token_ids[sequence.num_prompt_tokens :]
    if not sequence.matcher.advance(generated):
        message = f"the grammar does not allow the {len(generated)} generated tokens that came along"
        return [refuse(sequence, "token_ids", message)]
    return []


def _dead_end(sequence: Sequence) -> Refused:
    """Ends a text none of whose continuations its masks allow."""
    if sequence.matcher is not None and sequence.matcher.error:
        return refuse(sequence, "grammar", sequence.matcher.error)
    message = (
        f"no token is possible at position {sequence.committed_length}: allowed_token_ids, bad_words, "
        "min_tokens, stop ids and the grammar exclude one another"
    )
    return refuse(sequence, "params", message)


def refuse(sequence: Sequence, field: str, message: str) -> Refused:
    """Ends a request that cannot go on, and answers its active round."""
    assert sequence.active is not None
    refused = Refused(sequence.active.command.address, RefusalCode.INVALID_ARGUMENT, message, field)
    sequence.finish_reason, sequence.pivot_features = FinishReason.ERROR, None
    sequence.finish_round(Answer(None, None, refused))
    return refused


def _finish(sequence: Sequence, verdict: Verdict) -> list[Event]:
    features = sequence.pivot_features if _wants_features(sequence) else None
    sequence.finish_round(Answer(verdict, features))
    return [verdict] if features is None else [verdict, Features(verdict.address, features)]


def replay(command: Command, sequence: Sequence) -> list[Event]:
    """The stored answer of the last done round, under the repeated command's address."""
    assert sequence.answer is not None
    events: list[Event] = []
    if sequence.answer.refused is not None:
        events.append(sequence.answer.refused)
    if sequence.answer.verdict is not None:
        events.append(sequence.answer.verdict)
    if sequence.answer.features is not None:
        events.append(Features(command.address, sequence.answer.features))
    return events
