"""Ranges of request fields."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from protos import common_pb2
from protos.errors import InvalidRequest

KEY_BYTES = 16
MAX_STOPS = 16
MAX_STOP_CHARS = 1024
MAX_CHOICES = 64
# Used when a target states no limit of its own.
_DEFAULT_MAX_ROWS = 256

# Smallest and largest value; below the smallest temperature logits / T would overflow.
_FLOAT_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (0.01, 100.0),
}
MIN_TEMPERATURE = 2.0**-14


@dataclass(frozen=True)
class ModelLimits:
    """What the target can do, from its `Describe`.

    Args:
        max_length: most tokens of prompt and answer together.
        temperature, top_p, top_k: the model's generation defaults; 1.0, 1.0 and 0 (off) without.
    """

    model_names: tuple[str, ...]
    vocab_size: int
    max_length: int
    max_verify_block_size: int
    eos_token_ids: frozenset[int]
    temperature: float
    top_p: float
    top_k: int


def limits_of(describe: common_pb2.Describe) -> ModelLimits:
    """The limits a target states."""
    given = describe.generation_defaults
    bounds = [describe.max_context, describe.num_pages * describe.page_size]
    return ModelLimits(
        model_names=(describe.model, PurePath(describe.model).name),
        vocab_size=describe.vocab_size,
        max_length=min([bound for bound in bounds if bound] or [0]),
        max_verify_block_size=describe.max_verify_block_size or _DEFAULT_MAX_ROWS,
        eos_token_ids=frozenset(describe.eos_token_ids),
        temperature=given.temperature if given.HasField("temperature") else 1.0,
        top_p=given.top_p if given.HasField("top_p") else 1.0,
        top_k=given.top_k if given.HasField("top_k") else 0,
    )


def require_float(name: str, value: float) -> float:
    """The value, if it is a number in the field's range."""
    low, high = _FLOAT_RANGES[name]
    if not math.isfinite(value) or not low <= value <= high:
        raise InvalidRequest(f"{value} is outside [{low}, {high}]", field=name)
    if name == "top_p" and value == 0.0:
        raise InvalidRequest("must be above 0: no token would be left", field=name)
    if name == "temperature" and 0.0 < value < MIN_TEMPERATURE:
        raise InvalidRequest(f"{value} is below {MIN_TEMPERATURE}; use 0 for greedy", field=name)
    return value


def require_whole(name: str, value: int, low: int, high: int | None) -> None:
    """Raises InvalidRequest unless low <= value <= high."""
    if value < low or (high is not None and value > high):
        upper = "" if high is None else f" and at most {high}"
        raise InvalidRequest(f"{value} must be at least {low}{upper}", field=name)


def require_token_ids(token_ids: Iterable[int], vocab_size: int, name: str) -> None:
    """Raises InvalidRequest for an id outside the vocabulary."""
    worst = max(token_ids, default=0)
    if worst >= vocab_size:
        raise InvalidRequest(f"id {worst} is outside the vocabulary of {vocab_size}", field=name)


def require_stops(stops: Sequence[str], has_text: bool) -> tuple[str, ...]:
    """The stop strings, if they can be honoured."""
    if stops and not has_text:
        raise InvalidRequest("the target has no tokenizer: use stop_token_ids", field="stop")
    if len(stops) > MAX_STOPS:
        raise InvalidRequest(f"{len(stops)} strings, at most {MAX_STOPS}", field="stop")
    for stop in stops:
        if not 1 <= len(stop) <= MAX_STOP_CHARS:
            raise InvalidRequest(f"a string of {len(stop)} characters, 1 to {MAX_STOP_CHARS}", field="stop")
    return tuple(stops)
