"""The `response_format` of a request: what can be said of it before the target compiles it. Pure."""

from __future__ import annotations

import json

from coordinator.tokenizer import Tokenizer
from protos import common_pb2
from protos.errors import InvalidRequest

MAX_FORMAT_CHARS = 64 * 1024
MAX_OPTIONS = 1024


def read_format(message: common_pb2.ResponseFormat, tokenizer: Tokenizer) -> common_pb2.ResponseFormat | None:
    """The format, or None when there is none.

    Raises:
        InvalidRequest: naming the field; what only a compiler sees, the target refuses by the same name.
    """
    name = message.WhichOneof("format")
    if name is None:
        return None
    field = f"response_format.{name}"
    if not tokenizer.has_text:
        raise InvalidRequest("the target has no tokenizer: grammars need one", field=field)
    options = list(message.choice.values)
    text = "".join(options) if name == "choice" else getattr(message, name)
    if not text or (name == "choice" and not all(options)):
        raise InvalidRequest("is empty, or an option is", field=field)
    if len(text) > MAX_FORMAT_CHARS:
        raise InvalidRequest(f"{len(text)} characters, at most {MAX_FORMAT_CHARS}", field=field)
    if len(options) > MAX_OPTIONS:
        raise InvalidRequest(f"{len(options)} options, at most {MAX_OPTIONS}", field=field)
    if name == "json_schema":
        _require_schema(text, field)
    return message


def _require_schema(text: str, field: str) -> None:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"is not JSON: {error}", field=field) from error
    if not isinstance(schema, dict | bool):
        raise InvalidRequest("a JSON schema is an object or a boolean", field=field)
