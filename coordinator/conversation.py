"""Conversations as chat templates want them, with tools also where a template knows none.

A template that takes no notice of tools gets them in the widely used form: a system message that
lists their schemas, calls as JSON between `<tool_call>` tags, results between `<tool_response>` tags.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from coordinator.tokenizer import Tokenizer
from coordinator.tools import Tools
from protos import coordinator_pb2
from protos.errors import InvalidRequest

Message = dict[str, Any]

CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
_SYSTEM = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a JSON object with function name and arguments within
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def render(messages: Sequence[coordinator_pb2.ChatMessage], tools: Tools | None, tokenizer: Tokenizer) -> str:
    """The text of a conversation up to the point where the assistant answers.

    Raises:
        InvalidRequest: naming the field.
    """
    mappings = [_as_mapping(message) for message in messages]
    if tools is None and not any(
        "tool_calls" in mapping or mapping["role"] == "tool" for mapping in mappings
    ):
        return tokenizer.render_chat(mappings)
    offered = tools.for_template if tools is not None else []
    if tokenizer.template_knows_tools:
        return tokenizer.render_chat(mappings, offered)
    return tokenizer.render_chat(spelled_out(mappings, offered))


def _as_mapping(message: coordinator_pb2.ChatMessage) -> Message:
    if not message.role:
        raise InvalidRequest("every message needs a role", field="messages.role")
    mapping: Message = {"role": message.role, "content": message.content}
    if message.tool_call_id:
        mapping["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        mapping["tool_calls"] = [_call(call) for call in message.tool_calls]
    return mapping


def _call(call: coordinator_pb2.ToolCall) -> Message:
    """Templates go through arguments as a mapping."""
    try:
        arguments = json.loads(call.arguments_json or "{}")
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"is not JSON: {error}", field="messages.tool_calls.arguments_json") from error
    if not isinstance(arguments, dict):
        raise InvalidRequest("is no JSON object", field="messages.tool_calls.arguments_json")
    if not call.name:
        raise InvalidRequest("every call needs a name", field="messages.tool_calls.name")
    return {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": arguments}}


def spelled_out(messages: Sequence[Message], tools: Sequence[Message]) -> list[Message]:
    """The same conversation without tool fields, for templates that know none."""
    out = [_spelled_message(message) for message in messages]
    if not tools:
        return out
    text = _SYSTEM.format(tools="\n".join(json.dumps(tool) for tool in tools))
    if out and out[0]["role"] == "system":
        return [{**out[0], "content": f"{out[0]['content']}\n\n{text}"}, *out[1:]]
    return [{"role": "system", "content": text}, *out]


def _spelled_message(message: Message) -> Message:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    parts = [message["content"]] if message["content"] else []
    for call in message.get("tool_calls", ()):
        parts.append(f"{CALL_OPEN}\n{json.dumps(call['function'])}\n{CALL_CLOSE}")
    return {"role": message["role"], "content": "\n".join(parts)}
