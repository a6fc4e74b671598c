"""Tools: what is offered, how a conversation is rendered, and how calls come out of a text (pitfall C5)."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.answer import Answer
from coordinator.conversation import render
from coordinator.tokenizer import load_tokenizer, tokenizer_hash
from coordinator.tools import ToolChoice, Tools, read_tools, tool_grammar
from coordinator.toolstream import ToolStream
from deploy.in_process import InProcess, in_process
from protos import coordinator_pb2
from protos.common_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP, FINISH_REASON_TOOL_CALLS
from protos.coordinator_pb2 import SPECULATION_MODE_OFF, ChatMessage, ToolCall
from protos.errors import InvalidRequest
from target_service.build import BuiltTarget
from target_service.grammar import GrammarFactory
from target_service.grammars import Grammars
from tests.coordinator_fakes import EOS, V, make_tokenizer, tokenizer_files
from tests.coordinator_harness import shared_tokenizer
from tests.fakes import TableDrafter, table_built

WEATHER = {
    "name": "get_weather",
    "description": "Weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"enum": ["Rome", "Oslo"]},
            "days": {"type": "integer", "minimum": 0, "maximum": 9},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
ADD = {
    "name": "add",
    "parameters": {
        "type": "object",
        "properties": {name: {"type": "integer", "minimum": 0, "maximum": 99} for name in ("a", "b")},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
}
TOOLS_JSON = json.dumps([{"type": "function", "function": WEATHER}, ADD])
TOOLS = Tools((WEATHER, ADD))
KEY = bytes(16)
TWO_CALLS = (
    "Let me look.\n"
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich \\"x\\"", "days": 3}}\n</tool_call>\n'
    '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": {"c": [1, 2]}}}\n</tool_call>'
)


def streamed(text: str, cuts: list[int]) -> tuple[str, list[tuple[int, str, str, str]]]:
    """Content and calls of a text that comes in pieces."""
    stream = ToolStream(None, "<|im_start|>assistant\n", TOOLS, KEY)
    places = [0, *sorted(cuts), len(text)]
    updates = [stream.feed(text[a:b]) for a, b in itertools.pairwise(places)]
    updates.append(stream.finish())
    calls = [call for update in updates for call in update.calls]
    return "".join(update.text for update in updates), [
        (c.index, c.id, c.name, c.arguments_json) for c in calls
    ]


def check_chunkings() -> None:
    """C5: one fixed text with two calls in pieces of 1, 2, 7 and all: the same calls, byte for byte."""
    expected = streamed(TWO_CALLS, [])
    assert expected[0] == "Let me look."
    assert [call[2] for call in expected[1]] == ["get_weather", "add"]
    assert expected[1][0][3] == '{"city": "Zürich \\"x\\"", "days": 3}'
    assert expected[1][1][3] == '{"a": 1, "b": {"c": [1, 2]}}'
    for size in (1, 2, 7, 11):
        assert streamed(TWO_CALLS, list(range(size, len(TWO_CALLS), size))) == expected, size


def test_every_chunking_gives_the_same_calls() -> None:
    check_chunkings()


PIECES = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        "<tool",
        "</",
        "\n",
        " ",
        "hi",
        '{"name": "add", "arguments": {"a": 1}}',
        "{",
        "é<",
    ]
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(PIECES, max_size=9), st.data())
def test_any_text_in_any_pieces(pieces: list[str], data: st.DataObject) -> None:
    """Also texts that only look like calls: what comes out depends on the text alone."""
    text = "".join(pieces)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=6))
    assert streamed(text, cuts) == streamed(text, [])


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>not JSON</tool_call>",
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": 3}</tool_call>',
        '<tool_call>{"name": "add", "argu',
        "a < b </tool_call>",
        "<tool",
    ],
)
def test_what_is_no_call_stays_text(text: str) -> None:
    assert streamed(text, []) == (text, [])


def test_a_template_of_the_tokenizer_is_used() -> None:
    template = {
        "start_anchor": "[/INST]",
        "fields": {
            "tool_calls": {
                "open_pattern": r"\[CALL (?P<name>\w+)\]",
                "close": "[END]",
                "repeats": True,
                "content": "json",
                "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
            },
            "content": {},
        },
    }
    stream = ToolStream(template, "[/INST]", TOOLS, KEY)
    update = stream.feed('ok [CALL add]{"a": 1}[END]')
    assert [call.name for call in update.calls] == ["add"]


def test_what_a_template_cannot_read_stays_text() -> None:
    """Nothing that was written is lost or told twice, in whatever pieces it came."""
    template = {
        "start_anchor": "[A]",
        "fields": {
            "tool_calls": {
                "open": "[CALL]",
                "close": "[END]",
                "repeats": True,
                "content": "json",
                "transform": {"type": "function", "function": "{content}"},
            },
            "content": {},
        },
    }
    text = 'ok [CALL]{"name": "add"}[END] so [CALL]{nope[END] more'
    for size in (1, 3, 9, 200):
        stream = ToolStream(template, "[A]", TOOLS, KEY)
        updates = [stream.feed(text[i : i + size]) for i in range(0, len(text), size)]
        updates.append(stream.finish())
        assert "".join(update.text for update in updates) == "ok  so {nope more", size
        assert [call.name for update in updates for call in update.calls] == ["add"]


@pytest.mark.parametrize(
    ("tools_json", "choice", "field"),
    [
        ("{", "", "tools_json"),
        ("{}", "", "tools_json"),
        ("[1]", "", "tools_json"),
        ('[{"type": "function", "function": {}}]', "", "tools_json"),
        ('[{"name": "a", "parameters": 3}]', "", "tools_json"),
        ('[{"name": "a"}, {"name": "a"}]', "", "tools_json"),
        (json.dumps([{"name": f"f{i}"} for i in range(129)]), "", "tools_json"),
        (TOOLS_JSON, "subtract", "tool_choice"),
        (TOOLS_JSON, "{nope", "tool_choice"),
        (TOOLS_JSON, '{"type": "function"}', "tool_choice"),
        ("", "required", "tool_choice"),
        ("", "add", "tool_choice"),
    ],
)
def test_bad_tools_are_refused_by_name(tools_json: str, choice: str, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_tools(tools_json, choice)
    assert caught.value.field == field


def test_choices() -> None:
    assert read_tools("", "") is None
    assert read_tools("[]", "") is None
    assert read_tools(TOOLS_JSON, "none") is None
    auto = read_tools(TOOLS_JSON, "")
    assert auto is not None
    assert auto.choice is ToolChoice.AUTO
    assert auto.functions == (WEATHER, ADD)
    assert tool_grammar(auto) is None
    for choice in ("add", '{"type": "function", "function": {"name": "add"}}'):
        named = read_tools(TOOLS_JSON, choice)
        assert named is not None
        assert (named.choice, named.named) == (ToolChoice.REQUIRED, "add")


def message(role: str, content: str = "", **fields: Any) -> ChatMessage:
    return ChatMessage(role=role, content=content, **fields)


CONVERSATION = [
    message("user", "weather?"),
    message(
        "assistant",
        tool_calls=[ToolCall(id="1", name="get_weather", arguments_json='{"city": "Rome", "days": 1}')],
    ),
    message("tool", "sunny", tool_call_id="1"),
]


def test_a_template_without_tools_gets_them_spelled_out() -> None:
    text = render(CONVERSATION, TOOLS, shared_tokenizer())
    assert text.startswith("<|start|>system\n# Tools")
    assert json.dumps({"type": "function", "function": ADD}) in text
    assert (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome", "days": 1}}\n</tool_call>' in text
    )
    assert "<|start|>user\n<tool_response>\nsunny\n</tool_response>" in text
    own = render([message("system", "Be brief."), *CONVERSATION], TOOLS, shared_tokenizer())
    assert own.startswith("<|start|>system\nBe brief.\n\n# Tools")
    assert own.count("# Tools") == 1
    assert "# Tools" not in render(CONVERSATION, None, shared_tokenizer())


def test_a_template_with_tools_gets_them_as_they_are() -> None:
    files = tokenizer_files()
    files["chat_template.jinja"] = (
        b"{% if tools %}{{ tools | length }} tools{% endif %}{% for m in messages %}[{{ m['role'] }}]"
        b"{% for c in m['tool_calls'] or [] %}{{ c['function']['arguments']['city'] }}{% endfor %}"
        b"{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}[answer]{% endif %}"
    )
    tokenizer = load_tokenizer(files, tokenizer_hash(files))
    assert tokenizer.template_knows_tools
    assert tokenizer.answer_start == "[answer]"
    text = render(CONVERSATION, TOOLS, tokenizer)
    assert text == "2 tools[user]weather?[assistant]Rome[tool]sunny[answer]"


@pytest.mark.parametrize(
    ("call", "field"),
    [
        ({"name": "f", "arguments_json": "{"}, "messages.tool_calls.arguments_json"),
        ({"name": "f", "arguments_json": "[]"}, "messages.tool_calls.arguments_json"),
        ({"arguments_json": "{}"}, "messages.tool_calls.name"),
    ],
)
def test_bad_calls_in_a_conversation_are_refused_by_name(call: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        render([message("assistant", tool_calls=[ToolCall(**call)])], TOOLS, shared_tokenizer())
    assert caught.value.field == field


# ---- through a coordinator: a table target of all bytes, which can write nothing but what it must -----

TABLE = torch.randn(V, V, generator=torch.Generator().manual_seed(11))


def byte_target(table: torch.Tensor = TABLE, **limits: object) -> BuiltTarget:
    """A target over all bytes, with a tokenizer and grammars."""
    files = tokenizer_files()
    grammars = Grammars(GrammarFactory(files["tokenizer.json"], V, frozenset({EOS}), False))
    values = {"num_pages": 512, "eos_ids": frozenset({EOS}), "max_context": 2048, "prefill_rows": 512}
    built = table_built(table, grammars, **{**values, **limits})
    description = replace(built.description, tokenizer_hash=tokenizer_hash(files))
    return replace(built, description=description, tokenizer_files=files)


def system(table: torch.Tensor = TABLE) -> Any:
    return in_process(byte_target(table), TableDrafter(table, 7), shared_tokenizer())


def ask(name: str, choice: str, **fields: Any) -> coordinator_pb2.GenerateRequest:
    values = {"temperature": 1.0, "seed": 5, "max_tokens": 400, "messages": [message("user", "go")], **fields}
    return coordinator_pb2.GenerateRequest(
        request_id=name, tools_json=TOOLS_JSON, tool_choice=choice, **values
    )


async def complete(running: InProcess, request: coordinator_pb2.GenerateRequest) -> Answer:
    answer = Answer()
    generation = await running.coordinator.admit(request)
    async for response in generation.attach().messages():
        answer.add(response)
    return answer


async def test_a_tool_that_must_be_called_is_called() -> None:
    async with system() as running:
        for seed in range(6):
            answer = await complete(running, ask(f"any{seed}", "required", seed=seed))
            assert answer.finish_reason == FINISH_REASON_TOOL_CALLS
            assert answer.text == ""
            assert 1 <= len(answer.tool_calls) <= 8
            for call in answer.tool_calls:
                arguments = json.loads(call.arguments_json)
                assert set(arguments) == ({"a", "b"} if call.name == "add" else {"city", "days"})
            named = await complete(running, ask(f"named{seed}", "add", seed=seed))
            assert [call.name for call in named.tool_calls] == ["add"]


async def test_calls_are_the_same_with_and_without_speculation_and_when_resumed() -> None:
    async with system() as running:
        plain = ask("plain", "required")
        plain.speculation.mode = SPECULATION_MODE_OFF
        expected = await complete(running, plain)
        found = await complete(running, ask("drafted", "required"))
        assert found.token_ids == expected.token_ids
        assert found.tool_calls == expected.tool_calls
        assert len({call.id for call in expected.tool_calls}) == len(expected.tool_calls)
        for place in range(1, len(expected.token_ids), 13):
            resumed = ask(f"resumed{place}", "required")
            resumed.resume.token_ids.extend(expected.token_ids[:place])
            rest = await complete(running, resumed)
            given = [
                call
                for call in expected.tool_calls
                if call.id not in {c.id for c in rest.tool_calls if c.name}
            ]
            assert [*given, *[call for call in rest.tool_calls if call.name]] == list(expected.tool_calls)


async def test_a_cut_call_is_text_and_the_end_is_its_length() -> None:
    async with system() as running:
        answer = await complete(running, ask("cut", "add", max_tokens=20))
    assert answer.finish_reason == FINISH_REASON_LENGTH
    assert answer.tool_calls == []
    assert answer.text.startswith("<tool_call>")
    assert len(answer.token_ids) == 20


async def test_an_answer_without_calls_is_an_answer() -> None:
    saying = torch.full((V, V), -30.0)
    text = make_tokenizer().encode("hm<").ids
    saying[:, text[0]] = 0.0
    for one, other in zip(text, [*text[1:], EOS], strict=True):
        saying[one, other] = 30.0
    async with system(saying) as running:
        answer = await complete(running, ask("auto", "auto", temperature=0.0))
    assert (answer.text, answer.finish_reason) == ("hm<", FINISH_REASON_STOP)


async def test_two_formats_at_once_are_refused() -> None:
    async with system() as running:
        with pytest.raises(InvalidRequest) as caught:
            await running.coordinator.admit(ask("both", "required", response_format={"regex": "a"}))
    assert caught.value.field == "response_format"
