"""Sampling parameters at the coordinator: ranges, and what the target gets to see."""

from __future__ import annotations

import math
from typing import Any

import pytest

from protos import coordinator_pb2
from protos.common_pb2 import MODE_COUPLED, MODE_GREEDY, MODE_MATCH, MODE_REJECTION
from protos.coordinator_pb2 import (
    SPECULATION_MODE_COUPLED,
    SPECULATION_MODE_MATCH,
    SPECULATION_MODE_OFF,
    SPECULATION_MODE_REJECTION,
)
from tests.coordinator_fakes import V
from tests.coordinator_harness import shared_tokenizer
from tests.test_request import ids, parse, refused_field

OUT_OF_RANGE: list[tuple[dict[str, Any], str]] = [
    ({"presence_penalty": 2.5}, "presence_penalty"),
    ({"presence_penalty": math.nan}, "presence_penalty"),
    ({"frequency_penalty": -2.5}, "frequency_penalty"),
    ({"repetition_penalty": 0.0}, "repetition_penalty"),
    ({"repetition_penalty": math.inf}, "repetition_penalty"),
    ({"logit_bias": {V: 1.0}}, "logit_bias"),
    ({"logit_bias": {0: 101.0}}, "logit_bias"),
    ({"logit_bias": {0: math.nan}}, "logit_bias"),
    ({"allowed_token_ids": [V]}, "allowed_token_ids"),
    ({"bad_words": [""]}, "bad_words"),
    ({"bad_words": ["  "]}, "bad_words"),
    ({"bad_words": ["x" * 257]}, "bad_words"),
    ({"bad_words": ["x"] * 257}, "bad_words"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
    ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"speculation": {"mode": 77}}, "speculation.mode"),
    ({"response_format": {"json_schema": ""}}, "response_format.json_schema"),
    ({"response_format": {"json_schema": "{nope"}}, "response_format.json_schema"),
    ({"response_format": {"json_schema": "[1]"}}, "response_format.json_schema"),
    ({"response_format": {"json_schema": "[" * 60_000}}, "response_format.json_schema"),
    ({"response_format": {"regex": "a" * (64 * 1024 + 1)}}, "response_format.regex"),
    ({"response_format": {"choice": {}}}, "response_format.choice"),
    ({"response_format": {"choice": {"values": ["a", ""]}}}, "response_format.choice"),
    ({"response_format": {"choice": {"values": ["a"] * 1025}}}, "response_format.choice"),
    ({"response_format": {"grammar": ""}}, "response_format.grammar"),
]


@pytest.mark.parametrize(("fields", "field"), OUT_OF_RANGE)
def test_what_is_out_of_range_is_refused_by_name(fields: dict[str, Any], field: str) -> None:
    assert refused_field(ids(**fields)) == field


def test_bad_words_need_a_tokenizer() -> None:
    from coordinator.parameters import bad_word_ids
    from coordinator.tokenizer import NoTokenizer
    from protos.errors import InvalidRequest

    with pytest.raises(InvalidRequest) as caught:
        bad_word_ids(ids(bad_words=["x"]), NoTokenizer())
    assert caught.value.field == "bad_words"


def test_grammars_need_a_tokenizer() -> None:
    from coordinator.formats import read_format
    from coordinator.tokenizer import NoTokenizer
    from protos.common_pb2 import ResponseFormat
    from protos.errors import InvalidRequest

    assert read_format(ResponseFormat(), NoTokenizer()) is None
    with pytest.raises(InvalidRequest) as caught:
        read_format(ResponseFormat(regex="a"), NoTokenizer())
    assert caught.value.field == "response_format.regex"


def test_neutral_values_are_not_sent() -> None:
    plain = parse(ids()).params
    neutral = ids(
        presence_penalty=0.0,
        frequency_penalty=0.0,
        repetition_penalty=1.0,
        logit_bias={3: 0.0},
        min_tokens=0,
        logprobs=False,
    )
    assert parse(neutral).params == plain


def test_everything_arrives_at_the_target() -> None:
    given = ids(
        temperature=0.5,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.25,
        logit_bias={3: -7.5},
        allowed_token_ids=[5, 3, 5],
        bad_words=["no", " way"],
        min_tokens=4,
        max_tokens=9,
        logprobs=True,
        top_logprobs=2,
        prompt_logprobs=True,
    )
    params = parse(given).params
    assert (params.presence_penalty, params.frequency_penalty) == (0.5, -0.5)
    assert params.repetition_penalty == 1.25
    assert dict(params.logit_bias) == {3: -7.5}
    assert list(params.allowed_token_ids) == [3, 5]
    assert (params.min_tokens, params.max_tokens, params.top_logprobs) == (4, 9, 2)
    assert params.logprobs
    assert params.prompt_logprobs
    encode = shared_tokenizer().encode_rendered
    assert [list(word.token_ids) for word in params.bad_words] == [
        encode("no"),
        encode(" no"),
        encode(" way"),
    ]


def test_only_the_first_choice_tells_the_prompts_logprobs() -> None:
    first, second = parse(ids(n=2, prompt_logprobs=True)).choices()
    assert first.params.prompt_logprobs
    assert not second.params.prompt_logprobs


@pytest.mark.parametrize(
    ("mode", "temperature", "expected", "is_blind"),
    [
        (SPECULATION_MODE_REJECTION, 1.0, MODE_REJECTION, True),
        (SPECULATION_MODE_REJECTION, 0.0, MODE_GREEDY, False),
        (SPECULATION_MODE_MATCH, 1.0, MODE_MATCH, False),
        (SPECULATION_MODE_MATCH, 0.0, MODE_GREEDY, False),
        (SPECULATION_MODE_COUPLED, 1.0, MODE_COUPLED, False),
        (SPECULATION_MODE_OFF, 1.0, MODE_COUPLED, False),
    ],
)
def test_modes(mode: int, temperature: float, expected: int, is_blind: bool) -> None:
    request = parse(ids(temperature=temperature, speculation=coordinator_pb2.Speculation(mode=mode)))
    assert request.params.mode == expected
    assert request.plan.is_blind is is_blind
    assert request.plan.speculates is (mode != SPECULATION_MODE_OFF)
