"""`dlite generate`: flags and a file become a request, and its answer is shown."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from coordinator.coordinator import SOURCES
from coordinator.generate_cli import generate
from coordinator.generate_request import build_request
from deploy import cli
from protos import coordinator_pb2
from protos.errors import InvalidRequest
from tests.fakes import TableDrafter
from tests.system.stack import Stack, stack
from tests.test_tools import TABLE, byte_target

SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
GRAMMAR = 'start: "yes" | "no"\n'
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "ping", "parameters": NOTHING}}]


def written(folder: Path, name: str, content: object) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_flags_become_a_request() -> None:
    flags = {
        "chat": False,
        "max_tokens": 5,
        "temperature": 0.0,
        "seed": 3,
        "n": 2,
        "stop": ["a", "b"],
        "stop_token_id": [7],
        "bad_word": ["no"],
        "allowed_token_id": [1, 2],
        "logit_bias": ["5=-100", "6=1.5"],
        "source": "lookup",
        "mode": "coupled",
        "num_draft_tokens": 2,
    }
    message = build_request("p", flags)
    assert (message.prompt, message.seed, message.n, message.max_tokens) == ("p", 3, 2, 5)
    assert message.HasField("temperature")
    assert not message.HasField("top_p")
    assert list(message.stop) == ["a", "b"]
    assert list(message.stop_token_ids) == [7]
    assert list(message.bad_words) == ["no"]
    assert list(message.allowed_token_ids) == [1, 2]
    assert dict(message.logit_bias) == {5: -100.0, 6: 1.5}
    assert message.speculation.source == SOURCES["lookup"]
    assert message.speculation.mode == coordinator_pb2.SPECULATION_MODE_COUPLED
    assert message.speculation.num_draft_tokens == 2
    assert not message.speculation.HasField("verify_block_size")


def test_every_field_has_its_flag() -> None:
    flags = set(inspect.signature(generate).parameters)
    others = {
        **{"messages": "chat", "token_ids": "prompt", "stop_token_ids": "stop_token_id"},
        **{"allowed_token_ids": "allowed_token_id", "bad_words": "bad_word", "tools_json": "tools"},
        **{"response_format": "json_schema", "speculation": "mode", "resume": "params", "model": "params"},
    }
    fields = [field.name for field in coordinator_pb2.GenerateRequest.DESCRIPTOR.fields]
    assert [name for name in fields if others.get(name, name) not in flags] == []


def test_a_prompt_is_a_message_unless_it_is_raw() -> None:
    message = build_request("p", {"system": "be brief"})
    assert [(one.role, one.content) for one in message.messages] == [("system", "be brief"), ("user", "p")]
    assert not message.prompt


def test_greedy_is_temperature_0() -> None:
    message = build_request("p", {"mode": "greedy"})
    assert message.HasField("temperature")
    assert message.temperature == 0.0


def test_top_logprobs_ask_for_logprobs() -> None:
    assert build_request("p", {"top_logprobs": 2}).logprobs
    assert not build_request("p", {"top_logprobs": 2, "prompt_logprobs": True}).logprobs


FILE = {
    "temperature": 0.5,
    "stop": ["file"],
    "logit_bias": {"9": 2.0},
    "response_format": {"json_schema": SCHEMA},
    "tools": TOOLS,
    "speculation": {"mode": "off", "source": "drafter", "num_draft_tokens": 4},
}


def test_a_file_of_parameters(tmp_path: Path) -> None:
    message = build_request("p", {"params": written(tmp_path, "p.json", FILE)})
    assert message.temperature == 0.5
    assert list(message.stop) == ["file"]
    assert dict(message.logit_bias) == {9: 2.0}
    assert json.loads(message.response_format.json_schema) == SCHEMA
    assert json.loads(message.tools_json) == TOOLS
    assert message.speculation.mode == coordinator_pb2.SPECULATION_MODE_OFF
    assert message.speculation.source == SOURCES["drafter"]
    assert message.speculation.num_draft_tokens == 4


def test_flags_overrule_the_file(tmp_path: Path) -> None:
    flags = {
        "stop": ["flag"],
        "logit_bias": ["5=1"],
        "choice": ["a", "b"],
        "temperature": 1.0,
        "mode": "auto",
    }
    message = build_request("p", {"params": written(tmp_path, "p.json", FILE), **flags})
    assert message.temperature == 1.0
    assert list(message.stop) == ["flag"]
    assert dict(message.logit_bias) == {5: 1.0}
    assert list(message.response_format.choice.values) == ["a", "b"]
    assert message.speculation.mode == coordinator_pb2.SPECULATION_MODE_AUTO
    assert message.speculation.source == SOURCES["drafter"]


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        ({"source": "oracle"}, "--source"),
        ({"mode": "oracle"}, "--mode"),
        ({"mode": "greedy", "temperature": 0.5}, "--mode"),
        ({"max_tokens": -1}, "--max-tokens"),
        ({"seed": -1}, "--seed"),
        ({"stop_token_id": [-1]}, "--stop-token-id"),
        ({"logit_bias": ["5"]}, "--logit-bias"),
        ({"logit_bias": ["-1=5"]}, "--logit-bias"),
        ({"regex": "a", "choice": ["b"]}, "--choice"),
        ({"chat": False, "system": "s"}, "--system"),
        ({"json_schema": Path("nowhere.json")}, "--json-schema"),
        ({"tools": Path("nowhere.json")}, "--tools"),
        ({"params": Path("nowhere.json")}, "--params"),
    ],
    ids=str,
)
def test_flags_that_are_no_request(flags: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        build_request("p", flags)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "content",
    ["{", "[]", {"tempreature": 1}, {"seed": -1}, {"prompt": "p"}, {"speculation": {"mode": "oracle"}}],
    ids=str,
)
def test_files_that_are_no_request(content: object, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as caught:
        build_request("p", {"params": written(tmp_path, "p.json", content)})
    assert caught.value.field == "--params"


@dataclass(frozen=True)
class Terminal:
    """Runs the command in this process, against a stack of the three services."""

    system: Stack
    capsys: pytest.CaptureFixture[str]

    async def run(self, *args: str) -> tuple[int, str, str]:
        command = ["generate", "hi", "--address", self.system.coordinator.address, *args]
        try:
            code = await asyncio.to_thread(cli.run, command)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0
        captured = self.capsys.readouterr()
        return code, captured.out, captured.err

    async def report(self, *args: str) -> dict[str, Any]:
        code, out, err = await self.run("--json", *args)
        assert code == 0, err
        return dict(json.loads(out))


@pytest.fixture
async def terminal(capsys: pytest.CaptureFixture[str]) -> AsyncIterator[Terminal]:
    async with stack(byte_target(), TableDrafter(TABLE, 7)) as system:
        yield Terminal(system, capsys)


async def test_several_choices(terminal: Terminal) -> None:
    args = ("--seed", "5", "--temperature", "1", "--max-tokens", "9", "--ignore-eos")
    report = await terminal.report(*args, "-n", "3")
    texts = [choice["text"] for choice in report["choices"]]
    assert len(set(texts)) == 3
    assert report["text"] == texts[0]
    assert (await terminal.report(*args))["text"] == texts[0]
    code, out, err = await terminal.run(*args, "--n", "3")
    assert code == 0
    # Each text is whole, under its own line: nothing of another one in between.
    assert out == "".join(f"--- choice {i} [length]\n{text}\n" for i, text in enumerate(texts))
    assert "27 tokens" in err


async def test_logprobs_are_in_the_report(terminal: Terminal) -> None:
    report = await terminal.report(
        "--max-tokens", "4", "--top-logprobs", "2", "--mode", "greedy", "--ignore-eos"
    )
    assert [one["token_id"] for one in report["logprobs"]] == report["token_ids"]
    assert all(len(one["top"]) == 2 for one in report["logprobs"])
    assert report["prompt_logprobs"] == []
    report = await terminal.report("--max-tokens", "1", "--prompt-logprobs")
    assert len(report["prompt_logprobs"]) == report["usage"]["prompt_tokens"]


async def test_forms_of_an_answer(terminal: Terminal, tmp_path: Path) -> None:
    schema = str(written(tmp_path, "schema.json", SCHEMA))
    assert set(json.loads((await terminal.report("--json-schema", schema))["text"])) == {"ok"}
    assert (await terminal.report("--regex", "a{3}"))["text"] == "aaa"
    assert (await terminal.report("--choice", "left", "--choice", "right"))["text"] in ("left", "right")
    grammar = str(written(tmp_path, "yes.lark", GRAMMAR))
    assert (await terminal.report("--grammar", grammar))["text"] in ("yes", "no")


async def test_tool_calls_are_shown(terminal: Terminal, tmp_path: Path) -> None:
    args = ("--tools", str(written(tmp_path, "tools.json", TOOLS)), "--tool-choice", "ping", "--seed", "1")
    report = await terminal.report(*args)
    assert report["finish_reason"] == "tool_calls"
    assert {call["name"] for call in report["tool_calls"]} == {"ping"}
    _, out, _ = await terminal.run(*args)
    assert [json.loads(line)["name"] for line in out.split("\n") if line] == [
        call["name"] for call in report["tool_calls"]
    ]


async def test_masks_and_ends(terminal: Terminal) -> None:
    greedy = ("--mode", "greedy", "--max-tokens", "12", "--ignore-eos")
    plain = await terminal.report(*greedy)
    first = plain["token_ids"][0]
    banned = await terminal.report(*greedy, "--logit-bias", f"{first}=-100")
    assert banned["token_ids"][0] != first
    only = await terminal.report(*greedy, "--allowed-token-id", "65", "--allowed-token-id", "66")
    assert set(only["token_ids"]) <= {65, 66}
    ended = await terminal.report(*greedy, "--stop-token-id", str(plain["token_ids"][3]))
    assert (ended["finish_reason"], ended["stop_token_id"]) == ("stop", plain["token_ids"][3])
    assert plain["token_ids"][: len(ended["token_ids"])] == ended["token_ids"]


@pytest.mark.parametrize("mode", ["greedy", "coupled", "rejection", "match"])
async def test_modes(terminal: Terminal, mode: str) -> None:
    args = ("--mode", mode, "--seed", "3", "--max-tokens", "24", "--ignore-eos")
    report = await terminal.report(*args, "--top-k", "40", "--num-draft-tokens", "5")
    assert report["draft_rounds"] > 0
    assert len(report["token_ids"]) == 24
    if mode != "rejection":
        plain = await terminal.report(*args, "--top-k", "40", "--source", "off")
        assert plain["token_ids"] == report["token_ids"]
        assert plain["draft_rounds"] == 0


async def test_a_file_of_parameters_all_the_way(terminal: Terminal, tmp_path: Path) -> None:
    document = {
        "response_format": {"choice": ["left", "right"]},
        "temperature": 0.0,
        "speculation": {"mode": "off"},
    }
    report = await terminal.report("--params", str(written(tmp_path, "p.json", document)))
    assert report["text"] in ("left", "right")
    assert report["draft_rounds"] == 0


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--min-p", "1.5"), "min_p"),
        (("--top-logprobs", "99"), "top_logprobs"),
        (("--repetition-penalty", "-1"), "repetition_penalty"),
        (("--source", "oracle"), "--source"),
    ],
    ids=str,
)
async def test_what_is_refused_is_bad_usage(terminal: Terminal, args: tuple[str, ...], words: str) -> None:
    code, out, err = await terminal.run(*args)
    assert (code, out) == (2, "")
    assert words in err
