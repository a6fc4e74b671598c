"""Commands from protobuf to records: what comes in. Every refusal names its field."""

from __future__ import annotations

import json
import math

from protos import common_pb2, target_pb2
from protos.errors import InvalidRequest
from target_service import commands as c
from target_service.grammar import GrammarKind, GrammarSpec
from target_service.rejection import TruncatedLaw

MAX_TOP_LOGPROBS = 20
MAX_GRAMMAR_CHARS = 256 * 1024
MAX_BAD_WORDS = 1024
MAX_LOGIT_BIAS = 1024
MAX_BIAS = 100.0
MAX_PENALTY = 2.0
MAX_REPETITION = 100.0
MAX_SALT_BYTES = 32
_MODES_ABOVE_ZERO = {
    common_pb2.MODE_UNSPECIFIED,
    common_pb2.MODE_COUPLED,
    common_pb2.MODE_REJECTION,
    common_pb2.MODE_MATCH,
}


def address_of(command: target_pb2.Command, coordinator_id: str) -> c.Address:
    if not command.request_id:
        raise InvalidRequest("empty", field="request_id")
    if command.epoch == 0:
        raise InvalidRequest("epochs start at 1", field="epoch")
    return c.Address(c.RequestKey(coordinator_id, command.request_id), command.epoch, command.round)


def command_from(command: target_pb2.Command, coordinator_id: str) -> c.Command:
    """One command.

    Raises:
        InvalidRequest: a field is missing, out of range or not supported, by name.
    """
    address = address_of(command, coordinator_id)
    kind = command.WhichOneof("kind")
    if kind == "open":
        return _open_from(command.open, address)
    if kind == "verify":
        return _verify_from(command.verify, address)
    if kind == "run":
        run = command.run
        return c.Run(address, run.committed_length, run.max_tokens, run.want_features)
    if kind == "fetch":
        return c.Fetch(address, command.fetch.committed_length)
    if kind == "hold":
        return c.Hold(address)
    if kind == "close":
        return c.Close(address, command.close.keep_length)
    raise InvalidRequest("a command of no known kind", field="kind")


def _open_from(message: target_pb2.Open, address: c.Address) -> c.Open:
    if address.round != 0:
        raise InvalidRequest(f"Open is round 0, not {address.round}", field="round")
    return c.Open(
        address=address,
        token_ids=tuple(message.token_ids),
        num_prompt_tokens=message.num_prompt_tokens,
        sampling_key=message.sampling_key,
        params=params_from(message.params),
        want_features=message.want_features,
        fork_of=message.fork_of,
        grammar=grammar_from(message.grammar),
        prefix_salt=_salt_from(message.prefix_salt),
    )


def _salt_from(salt: bytes) -> bytes:
    if len(salt) > MAX_SALT_BYTES:
        raise InvalidRequest(f"{len(salt)} bytes, at most {MAX_SALT_BYTES}", field="open.prefix_salt")
    return salt


def grammar_from(message: common_pb2.ResponseFormat) -> GrammarSpec | None:
    """The grammar of a request, or None."""
    name = message.WhichOneof("format")
    if name is None:
        return None
    kind = GrammarKind(name)
    text = json.dumps(list(message.choice.values)) if name == "choice" else getattr(message, name)
    spec = GrammarSpec(kind, text)
    if len(text) > MAX_GRAMMAR_CHARS:
        raise InvalidRequest(f"{len(text)} characters, at most {MAX_GRAMMAR_CHARS}", field=spec.field)
    if not text or (name == "choice" and not all(message.choice.values or [""])):
        raise InvalidRequest("is empty, or an option is", field=spec.field)
    return spec


def _verify_from(message: target_pb2.Verify, address: c.Address) -> c.Verify:
    return c.Verify(
        address=address,
        committed_length=message.committed_length,
        proposals=tuple(message.proposals),
        cohort=message.cohort,
        want_features=message.want_features,
        laws=tuple(TruncatedLaw(tuple(law.token_ids), tuple(law.probabilities)) for law in message.law),
    )


def _within(value: float, low: float, high: float, field: str) -> float:
    if not low <= value <= high or math.isnan(value):
        raise InvalidRequest(f"{value} is not in [{low}, {high}]", field=f"params.{field}")
    return value


def _most(count: int, most: int, field: str) -> None:
    if count > most:
        raise InvalidRequest(f"{count}, at most {most}", field=f"params.{field}")


def _given(message: common_pb2.SamplingParams, field: str, neutral: float, low: float, high: float) -> float:
    """An optional number, `neutral` when it is not set."""
    return _within(getattr(message, field) if message.HasField(field) else neutral, low, high, field)


def params_from(message: common_pb2.SamplingParams) -> c.SamplingParams:
    """Sampling parameters; what is out of range is refused by name."""
    temperature = _within(message.temperature, 0.0, 1e6, "temperature")
    allowed_modes = (
        _MODES_ABOVE_ZERO if temperature else {common_pb2.MODE_UNSPECIFIED, common_pb2.MODE_GREEDY}
    )
    if message.mode not in allowed_modes:
        name = common_pb2.Mode.Name(message.mode) if message.mode in common_pb2.Mode.values() else "?"
        raise InvalidRequest(f"{name} at temperature {temperature} is not supported", field="params.mode")
    _most(message.top_logprobs, MAX_TOP_LOGPROBS, "top_logprobs")
    return c.SamplingParams(
        temperature=temperature,
        top_k=message.top_k if message.HasField("top_k") else 0,
        top_p=_given(message, "top_p", 1.0, 1e-9, 1.0),
        min_p=_given(message, "min_p", 0.0, 0.0, 1.0),
        max_tokens=message.max_tokens,
        ignore_eos=message.ignore_eos,
        stop_token_ids=frozenset(message.stop_token_ids),
        uses_rejection=message.mode == common_pb2.MODE_REJECTION,
        presence_penalty=_given(message, "presence_penalty", 0.0, -MAX_PENALTY, MAX_PENALTY),
        frequency_penalty=_given(message, "frequency_penalty", 0.0, -MAX_PENALTY, MAX_PENALTY),
        repetition_penalty=_given(message, "repetition_penalty", 1.0, 1 / MAX_REPETITION, MAX_REPETITION),
        logit_bias=_bias_from(message),
        allowed_token_ids=frozenset(message.allowed_token_ids),
        bad_words=_bad_words_from(message),
        min_tokens=message.min_tokens,
        logprobs=message.logprobs,
        top_logprobs=message.top_logprobs,
        prompt_logprobs=message.prompt_logprobs,
    )


def _bias_from(message: common_pb2.SamplingParams) -> tuple[tuple[int, float], ...]:
    _most(len(message.logit_bias), MAX_LOGIT_BIAS, "logit_bias")
    items = sorted(message.logit_bias.items())
    return tuple((token, _within(bias, -MAX_BIAS, MAX_BIAS, "logit_bias")) for token, bias in items if bias)


def _bad_words_from(message: common_pb2.SamplingParams) -> tuple[tuple[int, ...], ...]:
    _most(len(message.bad_words), MAX_BAD_WORDS, "bad_words")
    words = tuple(tuple(word.token_ids) for word in message.bad_words)
    if not all(words):
        raise InvalidRequest("a word without tokens", field="params.bad_words")
    return words
