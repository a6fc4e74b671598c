"""The prompt's tokens: from text, from ids or from a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coordinator.tokenizer import Tokenizer
from protos import coordinator_pb2
from protos.errors import InvalidRequest


def prompt_tokens(
    message: coordinator_pb2.GenerateRequest | coordinator_pb2.TokenizeRequest, tokenizer: Tokenizer
) -> tuple[int, ...]:
    """The ids of the one prompt form that is given.

    Raises:
        InvalidRequest: none or several are given, or the prompt is empty.
    """
    token_ids = getattr(message, "token_ids", ())
    given = [
        name
        for name, value in (
            ("prompt", message.prompt),
            ("token_ids", token_ids),
            ("messages", message.messages),
        )
        if len(value)
    ]
    if not given:
        raise InvalidRequest("the prompt is empty: give prompt, token_ids or messages", field="prompt")
    if len(given) > 1:
        raise InvalidRequest(f"{' and '.join(given)} are given: give exactly one", field=given[1])
    if given[0] == "token_ids":
        return tuple(token_ids)
    if given[0] == "messages":
        ids = tokenizer.encode_chat([_as_mapping(item) for item in message.messages])
    else:
        ids = tokenizer.encode(message.prompt)
    if not ids:
        raise InvalidRequest("the prompt has no tokens", field=given[0])
    return tuple(ids)


def _as_mapping(message: coordinator_pb2.ChatMessage) -> dict[str, Any]:
    if not message.role:
        raise InvalidRequest("every message needs a role", field="messages.role")
    mapping = {"role": message.role, "content": message.content}
    if message.tool_call_id:
        mapping["tool_call_id"] = message.tool_call_id
    return mapping


def num_prompt_chars(messages: Sequence[coordinator_pb2.ChatMessage], prompt: str) -> int:
    """Size of a prompt, to decide whether tokenising it may stay on the event loop."""
    return len(prompt) + sum(len(item.content) for item in messages)
