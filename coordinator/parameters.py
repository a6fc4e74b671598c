"""Sampling parameters of a request: ranges, and what the target gets to see of them. Pure.

What changes nothing is not sent, so that a request without processors costs the target nothing.
"""

from __future__ import annotations

import math

from coordinator.bounds import ModelLimits, require_float, require_token_ids, require_whole
from coordinator.planning import MODES
from coordinator.tokenizer import Tokenizer
from protos import common_pb2, coordinator_pb2
from protos.errors import InvalidRequest

MAX_TOP_LOGPROBS = 20
MAX_LOGIT_BIAS = 1024
MAX_BIAS = 100.0
MAX_BAD_WORDS = 256
MAX_BAD_WORD_CHARS = 256
# Value that changes nothing, of optional numbers.
_PENALTIES = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}


def read_params(
    message: coordinator_pb2.GenerateRequest, limits: ModelLimits, tokenizer: Tokenizer
) -> common_pb2.SamplingParams:
    """Sampling parameters without max_tokens; unset ones come from the model, else neutral.

    Raises:
        InvalidRequest: naming the field, with numbers.
    """
    params = common_pb2.SamplingParams(ignore_eos=message.ignore_eos)
    _set_law(params, message, limits)
    require_token_ids(message.stop_token_ids, limits.vocab_size, "stop_token_ids")
    params.stop_token_ids.extend(message.stop_token_ids)
    for name, neutral in _PENALTIES.items():
        value = require_float(name, getattr(message, name)) if message.HasField(name) else neutral
        if value != neutral:
            setattr(params, name, value)
    _set_bias(params, message, limits)
    require_token_ids(message.allowed_token_ids, limits.vocab_size, "allowed_token_ids")
    params.allowed_token_ids.extend(sorted(set(message.allowed_token_ids)))
    for ids in bad_word_ids(message, tokenizer):
        params.bad_words.add(token_ids=ids)
    params.min_tokens = message.min_tokens
    _set_logprobs(params, message)
    return params


def _set_law(
    params: common_pb2.SamplingParams, message: coordinator_pb2.GenerateRequest, limits: ModelLimits
) -> None:
    """Temperature, mode and filters; at temperature 0 every mode is greedy and filters change nothing."""
    params.temperature = require_float(
        "temperature", message.temperature if message.HasField("temperature") else limits.temperature
    )
    top_p = require_float("top_p", message.top_p if message.HasField("top_p") else limits.top_p)
    min_p = require_float("min_p", message.min_p if message.HasField("min_p") else 0.0)
    top_k = message.top_k if message.HasField("top_k") else limits.top_k
    if params.temperature == 0.0:
        params.mode = common_pb2.MODE_GREEDY
        return
    params.mode = MODES.get(message.speculation.mode, common_pb2.MODE_COUPLED)
    if top_p < 1.0:
        params.top_p = top_p
    if 0 < top_k < limits.vocab_size:
        params.top_k = top_k
    if min_p > 0.0:
        params.min_p = min_p


def _set_bias(
    params: common_pb2.SamplingParams, message: coordinator_pb2.GenerateRequest, limits: ModelLimits
) -> None:
    _require_count("logit_bias", len(message.logit_bias), MAX_LOGIT_BIAS)
    require_token_ids(message.logit_bias, limits.vocab_size, "logit_bias")
    for token_id, bias in message.logit_bias.items():
        if not math.isfinite(bias) or abs(bias) > MAX_BIAS:
            raise InvalidRequest(
                f"{bias} for token {token_id} is outside [{-MAX_BIAS}, {MAX_BIAS}]", field="logit_bias"
            )
        if bias:
            params.logit_bias[token_id] = bias


def bad_word_ids(message: coordinator_pb2.GenerateRequest, tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """Token sequences of the bad words, each as it is and with a space before it.

    A word may have further tokenisations, as part of longer tokens: those are not banned.
    """
    words = message.bad_words
    _require_count("bad_words", len(words), MAX_BAD_WORDS)
    if words and not tokenizer.has_text:
        raise InvalidRequest("the target has no tokenizer: use logit_bias", field="bad_words")
    sequences: dict[tuple[int, ...], None] = {}
    for word in words:
        if not word.strip() or len(word) > MAX_BAD_WORD_CHARS:
            raise InvalidRequest(
                f"a word of {len(word)} characters: 1 to {MAX_BAD_WORD_CHARS}, not only spaces",
                field="bad_words",
            )
        for text in (word, " " + word.lstrip()):
            sequences[tuple(tokenizer.encode_rendered(text))] = None
    return [ids for ids in sequences if ids]


def _set_logprobs(params: common_pb2.SamplingParams, message: coordinator_pb2.GenerateRequest) -> None:
    require_whole("top_logprobs", message.top_logprobs, 0, MAX_TOP_LOGPROBS)
    if message.top_logprobs and not (message.logprobs or message.prompt_logprobs):
        raise InvalidRequest("needs logprobs or prompt_logprobs", field="top_logprobs")
    params.logprobs = message.logprobs
    params.top_logprobs = message.top_logprobs
    params.prompt_logprobs = message.prompt_logprobs


def _require_count(name: str, count: int, most: int) -> None:
    if count > most:
        raise InvalidRequest(f"{count} entries, at most {most}", field=name)
