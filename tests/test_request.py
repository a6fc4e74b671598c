"""Validation of requests: every refusal names its field and says numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from coordinator.bounds import limits_of
from coordinator.keys import seed_key
from coordinator.planning import PlanDefaults
from coordinator.request import Request, RequestContext, parse_request
from coordinator.resumed import Ended
from coordinator.tokenizer import NoTokenizer
from protos import common_pb2, coordinator_pb2
from protos.common_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP, MODE_COUPLED, MODE_GREEDY
from protos.coordinator_pb2 import PROPOSAL_SOURCE_AUTO, PROPOSAL_SOURCE_LOOKUP, SPECULATION_MODE_OFF
from protos.errors import InvalidRequest
from tests.coordinator_fakes import EOS, V
from tests.coordinator_harness import describe_target, shared_tokenizer

TEXT_IDS = shared_tokenizer().encode("a text ends")
DEFAULTS = PlanDefaults(7, 8, PROPOSAL_SOURCE_AUTO)


def context(**describe: Any) -> RequestContext:
    return RequestContext(
        limits_of(describe_target(**describe)), shared_tokenizer(), DEFAULTS, lambda count: b"r" * count
    )


def parse(message: coordinator_pb2.GenerateRequest, **describe: Any) -> Request:
    return parse_request(message, "id", context(**describe))


def ids(**fields: Any) -> coordinator_pb2.GenerateRequest:
    return coordinator_pb2.GenerateRequest(token_ids=[1, 2, 3], **fields)


def refused_field(message: coordinator_pb2.GenerateRequest, **describe: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        parse(message, **describe)
    return caught.value.field


def test_a_plain_request_takes_the_defaults() -> None:
    request = parse(ids())
    assert request.token_ids == (1, 2, 3)
    assert request.num_prompt_tokens == 3
    assert request.sampling_key == b"r" * 16
    assert request.params.temperature == 1.0
    assert request.params.mode == MODE_COUPLED
    assert request.params.max_tokens == 512 - 3
    assert request.plan.num_draft_tokens == 7
    assert request.plan.verify_block_size == 8


def test_the_models_generation_defaults_fill_in() -> None:
    given = common_pb2.GenerationDefaults(temperature=0.5, top_p=0.75, top_k=40)
    params = parse(ids(), generation_defaults=given).params
    assert (params.temperature, params.top_p, params.top_k) == (0.5, 0.75, 40)
    params = parse(ids(temperature=0.25, top_p=1.0, top_k=0), generation_defaults=given).params
    assert params.temperature == 0.25
    assert not params.HasField("top_p")
    assert not params.HasField("top_k")


def test_temperature_zero_is_greedy_and_sends_no_filters() -> None:
    params = parse(ids(temperature=0.0, top_p=0.5, top_k=3, min_p=0.1)).params
    assert params.mode == MODE_GREEDY
    assert not params.HasField("top_p")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"token_ids": []}, "prompt"),
        ({"prompt": "a", "token_ids": [1]}, "token_ids"),
        ({"prompt": "a", "messages": [{"role": "user", "content": "b"}]}, "messages"),
        ({"messages": [{"content": "b"}]}, "messages.role"),
        ({"token_ids": [V]}, "token_ids"),
        ({"prompt": "a", "model": "other"}, "model"),
    ],
)
def test_exactly_one_prompt(fields: dict[str, Any], field: str) -> None:
    assert refused_field(coordinator_pb2.GenerateRequest(**fields)) == field


def test_a_space_is_a_prompt() -> None:
    assert len(parse(coordinator_pb2.GenerateRequest(prompt=" ")).token_ids) == 1


def test_a_conversation_goes_through_the_chat_template() -> None:
    message = coordinator_pb2.GenerateRequest(messages=[{"role": "user", "content": "hi"}])
    expected = shared_tokenizer().encode("<|start|>user\nhi<|end|><|start|>assistant\n")
    assert list(parse(message).token_ids) == expected


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"temperature": 1e-30}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_p": math.nan}, "top_p"),
        ({"min_p": -1.0}, "min_p"),
        ({"min_p": 2.0}, "min_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 510}, "max_tokens"),
        ({"max_tokens": 2**32 - 1}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 65}, "n"),
        ({"n": 2, "resume": {"token_ids": [4]}}, "resume"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop_token_ids": [V]}, "stop_token_ids"),
    ],
)
def test_values_out_of_range(fields: dict[str, Any], field: str) -> None:
    assert refused_field(ids(**fields)) == field


UNKNOWN: list[tuple[dict[str, Any], str]] = [
    ({"speculation": {"mode": 77}}, "speculation.mode"),
    ({"speculation": {"source": 77}}, "speculation.source"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools_json": "{}"}, "tools_json"),
]


@pytest.mark.parametrize(("fields", "field"), UNKNOWN)
def test_what_is_unknown_is_refused_by_name(fields: dict[str, Any], field: str) -> None:
    assert refused_field(ids(**fields)) == field


@pytest.mark.parametrize(
    "fields",
    [
        {"presence_penalty": 0.0},
        {"repetition_penalty": 1.0},
        {"min_tokens": 0},
        {"n": 1},
        {"tool_choice": "none"},
        {"tool_choice": "auto"},
        {"tools_json": "[]"},
        {"session_id": "agent-7"},
        {"model": "models/table"},
        {"model": "table"},
    ],
)
def test_neutral_values_pass(fields: dict[str, Any]) -> None:
    assert parse(ids(**fields)).token_ids == (1, 2, 3)


def test_every_field_of_the_schema_is_handled() -> None:
    """A field added to the schema must be read, never ignored."""
    supported = {
        *("request_id", "model", "session_id", "prompt", "token_ids", "messages", "resume"),
        *("temperature", "top_p", "top_k", "min_p", "seed", "speculation"),
        *("max_tokens", "ignore_eos", "stop", "stop_token_ids", "n", "min_tokens"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty"),
        *("logit_bias", "allowed_token_ids", "bad_words"),
        *("logprobs", "top_logprobs", "prompt_logprobs", "response_format"),
        *("tools_json", "tool_choice"),
    }
    assert set(coordinator_pb2.GenerateRequest.DESCRIPTOR.fields_by_name) == supported


def test_a_prompt_that_can_never_fit_says_the_numbers() -> None:
    with pytest.raises(InvalidRequest, match=r"512 tokens.*room for 512.*at most 511"):
        parse(coordinator_pb2.GenerateRequest(token_ids=[1] * 512))
    assert parse(coordinator_pb2.GenerateRequest(token_ids=[1] * 511)).params.max_tokens == 1


def test_the_page_pool_bounds_what_fits() -> None:
    assert parse(ids(), num_pages=4, page_size=16).params.max_tokens == 61
    assert refused_field(ids(max_tokens=62), num_pages=4, page_size=16) == "max_tokens"


def test_a_seed_gives_the_same_key_every_time() -> None:
    assert parse(ids(seed=7)).sampling_key == parse(ids(seed=7)).sampling_key == seed_key(7)
    assert seed_key(7).hex() == "bce31706d5a08cd383f315197a34e86a"
    assert seed_key(7) != seed_key(8)
    assert parse(ids(seed=0)).sampling_key != parse(ids()).sampling_key


@pytest.mark.parametrize(
    ("speculation", "k", "v"),
    [
        ({"num_draft_tokens": 3}, 3, 4),
        ({"verify_block_size": 5}, 4, 5),
        ({"num_draft_tokens": 6, "verify_block_size": 4}, 6, 4),
        ({"num_draft_tokens": 0}, 0, 1),
        ({"verify_block_size": 1}, 0, 1),
    ],
)
def test_k_and_v(speculation: dict[str, int], k: int, v: int) -> None:
    plan = parse(ids(speculation=speculation)).plan
    assert (plan.num_draft_tokens, plan.verify_block_size) == (k, v)
    assert plan.max_proposals == v - 1


@pytest.mark.parametrize(
    ("speculation", "field"),
    [
        ({"num_draft_tokens": 16}, "speculation.num_draft_tokens"),
        ({"verify_block_size": 0}, "speculation.verify_block_size"),
        ({"verify_block_size": 17}, "speculation.verify_block_size"),
        ({"num_draft_tokens": 3, "verify_block_size": 5}, "speculation.verify_block_size"),
    ],
)
def test_k_and_v_out_of_bounds(speculation: dict[str, int], field: str) -> None:
    assert refused_field(ids(speculation=speculation)) == field


def test_speculation_off_and_source() -> None:
    plan = parse(ids(speculation={"mode": SPECULATION_MODE_OFF})).plan
    assert not plan.uses_drafter
    assert not plan.uses_lookup
    plan = parse(ids(speculation={"source": PROPOSAL_SOURCE_LOOKUP})).plan
    assert plan.uses_lookup
    assert not plan.uses_drafter


def test_resume_puts_known_tokens_behind_the_prompt() -> None:
    request = parse(ids(resume={"token_ids": [4, 5], "sampling_key": b"k" * 16}, max_tokens=9))
    assert request.token_ids == (1, 2, 3, 4, 5)
    assert request.num_prompt_tokens == 3
    assert request.sampling_key == b"k" * 16


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"resume": {"sampling_key": b"short"}}, "resume.sampling_key"),
        ({"resume": {"sampling_key": b"k" * 16}, "seed": 3}, "resume.sampling_key"),
        ({"resume": {"token_ids": [V]}}, "resume.token_ids"),
        ({"resume": {"token_ids": [4, 5]}, "max_tokens": 1}, "resume.token_ids"),
    ],
)
def test_resume_that_makes_no_sense(fields: dict[str, Any], field: str) -> None:
    assert refused_field(ids(**fields)) == field


@pytest.mark.parametrize(
    ("fields", "ended"),
    [
        ({"resume": {"token_ids": [4, 5]}}, None),
        ({"resume": {"token_ids": [4, EOS]}}, Ended(FINISH_REASON_STOP)),
        ({"resume": {"token_ids": [4, EOS]}, "ignore_eos": True}, None),
        ({"resume": {"token_ids": [4, 5]}, "stop_token_ids": [5]}, Ended(FINISH_REASON_STOP)),
        ({"resume": {"token_ids": [4, 5]}, "max_tokens": 2}, Ended(FINISH_REASON_LENGTH)),
        ({"resume": {"token_ids": [4, EOS]}, "max_tokens": 2}, Ended(FINISH_REASON_STOP)),
        ({"resume": {"token_ids": TEXT_IDS}, "stop": ["xt e"]}, Ended(FINISH_REASON_STOP, "xt e")),
        ({"resume": {"token_ids": TEXT_IDS}, "stop": ["ends here"]}, None),
    ],
)
def test_a_resumed_text_may_be_whole_already(fields: dict[str, Any], ended: Ended | None) -> None:
    assert parse(ids(**fields)).ended == ended


def test_a_target_without_tokenizer_takes_ids_only() -> None:
    bare = replace(context(), tokenizer=NoTokenizer())
    assert parse_request(ids(), "id", bare).token_ids == (1, 2, 3)
    for message, field in (
        (coordinator_pb2.GenerateRequest(prompt="a"), "prompt"),
        (ids(stop=["a"]), "stop"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            parse_request(message, "id", bare)
        assert caught.value.field == field
