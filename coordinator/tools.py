"""Tools of a request: what is offered, what must be called, and the grammar that makes sure of it. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any

from protos import common_pb2
from protos.errors import InvalidRequest

MAX_TOOLS = 128
# Calls in one answer, where the grammar leaves the number open.
MAX_CALLS = 8


class ToolChoice(Enum):
    """Whether a tool is called: by the model's choice, or by a grammar that allows nothing else."""

    AUTO = "auto"
    REQUIRED = "required"


@dataclass(frozen=True, eq=False)
class Tools:
    """The tools of a request.

    Args:
        functions: each `{"name", "description"?, "parameters"?}`; names differ.
        choice: see `ToolChoice`.
        named: the one that must be called; empty for any.
    """

    functions: tuple[dict[str, Any], ...]
    choice: ToolChoice = ToolChoice.AUTO
    named: str = ""

    @property
    def for_template(self) -> list[dict[str, Any]]:
        """In the form chat templates take."""
        return [{"type": "function", "function": function} for function in self.functions]


def read_tools(tools_json: str, tool_choice: str) -> Tools | None:
    """The tools; None when there are none, or none may be called.

    Args:
        tools_json: a list of functions, bare or as `{"type": "function", "function": ..}`.
        tool_choice: auto, none, required, a tool's name, or `{"type": "function", "function": {"name": ..}}`.

    Raises:
        InvalidRequest: naming the field.
    """
    choice = _chosen(tool_choice)
    if not tools_json:
        if choice not in ("auto", "none"):
            raise InvalidRequest("there are no tools to choose from", field="tool_choice")
        return None
    functions = tuple(_function(item) for item in _items(tools_json))
    names = [function["name"] for function in functions]
    if len(set(names)) != len(names):
        raise InvalidRequest("two tools have the same name", field="tools_json")
    if choice == "none" or not functions:
        return None
    if choice in ("auto", "required"):
        return Tools(functions, ToolChoice(choice))
    if choice not in names:
        raise InvalidRequest(f"{choice!r} is none of the tools {', '.join(names)}", field="tool_choice")
    return Tools(functions, ToolChoice.REQUIRED, choice)


def _chosen(tool_choice: str) -> str:
    """auto, none, required or a name."""
    if not tool_choice.lstrip().startswith("{"):
        return tool_choice or "auto"
    try:
        name = json.loads(tool_choice)["function"]["name"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidRequest(f"is no choice of a function: {error!r}", field="tool_choice") from error
    if not isinstance(name, str):
        raise InvalidRequest("the function's name is no string", field="tool_choice")
    return name


def _items(tools_json: str) -> list[Any]:
    try:
        items = json.loads(tools_json)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"is not JSON: {error}", field="tools_json") from error
    if not isinstance(items, list) or len(items) > MAX_TOOLS:
        raise InvalidRequest(f"is no list of at most {MAX_TOOLS} tools", field="tools_json")
    return items


def _function(item: Any) -> dict[str, Any]:
    function = item.get("function", item) if isinstance(item, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise InvalidRequest("a tool is a function with a name", field="tools_json")
    if not isinstance(function.get("parameters", {}), dict):
        raise InvalidRequest(f"parameters of {function['name']!r} are no JSON schema", field="tools_json")
    return function


def tool_grammar(tools: Tools) -> common_pb2.ResponseFormat | None:
    """The grammar of an answer that must be tool calls; None where the model may choose."""
    if tools.choice is ToolChoice.AUTO:
        return None
    chosen = [f for f in tools.functions if tools.named in ("", f["name"])]
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": function["name"]},
                "arguments": {"type": "object", **function.get("parameters", {})},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for function in chosen
    ]
    schema = json.dumps(calls[0] if len(calls) == 1 else {"anyOf": calls})
    more = "" if tools.named else f'("\\n" one){{0,{MAX_CALLS - 1}}}'
    lark = f'start: one {more}\none: "<tool_call>\\n" call "\\n</tool_call>"\ncall: %json {schema}\n'
    return common_pb2.ResponseFormat(grammar=lark)
