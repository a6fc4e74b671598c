"""The law of one decision, one token at a time in plain Python: the slow twin of the target's rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from protos import common_pb2

INFINITY = math.inf


@dataclass(frozen=True)
class Text:
    """What a decision has before it, and the ids that end a text."""

    prompt: Sequence[int]
    generated: Sequence[int]
    stop_ids: frozenset[int]
    allowed: frozenset[int] | None = None  # by the grammar
    is_over: bool = False  # the grammar has completed the text


def processed(logits: Sequence[float], params: common_pb2.SamplingParams, text: Text) -> list[float]:
    """Logits after the processors, in vLLM's documented order."""
    generated, seen = list(text.generated), {*text.prompt, *text.generated}
    factor = params.repetition_penalty if params.HasField("repetition_penalty") else 1.0
    out = []
    for token, logit in enumerate(logits):
        value = logit
        for word in params.bad_words:
            *start, last = word.token_ids
            if last == token and generated[len(generated) - len(start) :] == start:
                value = -INFINITY
        if params.allowed_token_ids and token not in params.allowed_token_ids:
            value = -INFINITY
        if text.allowed is not None and token not in text.allowed:
            value = -INFINITY
        if len(generated) < params.min_tokens and token in text.stop_ids and not text.is_over:
            value = -INFINITY
        value += dict(params.logit_bias).get(token, 0.0)
        if token in seen:
            value = value / factor if value > 0 else value * factor
        value -= params.frequency_penalty * generated.count(token)
        value -= params.presence_penalty * (token in generated)
        out.append(value)
    return out


def law(logits: Sequence[float], params: common_pb2.SamplingParams, text: Text) -> list[float]:
    """Probabilities after processors, temperature, top-k, top-p and min-p, in this order."""
    values = softmax([value / params.temperature for value in processed(logits, params, text)])
    if params.HasField("top_k"):
        threshold = sorted(values, reverse=True)[params.top_k - 1]
        values = normalised([value if value >= threshold else 0.0 for value in values])
    if params.HasField("top_p"):
        order = sorted(range(len(values)), key=lambda token: (-values[token], token))
        mass, kept = 0.0, set()
        for token in order:
            if mass < params.top_p:
                kept.add(token)
            mass += values[token]
        values = normalised([value if token in kept else 0.0 for token, value in enumerate(values)])
    if params.HasField("min_p"):
        floor = max(values) * params.min_p
        values = normalised([value if value >= floor else 0.0 for value in values])
    return values


def softmax(values: Sequence[float]) -> list[float]:
    most = max(values)
    return normalised([math.exp(value - most) for value in values])


def normalised(values: Sequence[float]) -> list[float]:
    total = sum(values)
    return [value / total for value in values]
