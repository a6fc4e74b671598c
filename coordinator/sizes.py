"""How large the parts of a request may be: every string, every list. Looked at before anything else.

Counts and names beyond their limit are mistakes; text beyond its limit is too large. What fits a model's
context is another question, which is asked later, in tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from protos.errors import InvalidRequest, TooLarge

# UTF-8 bytes of prompt, messages and tools together.
MAX_TEXT_BYTES = 4 * 1024 * 1024
MAX_TOKEN_IDS = 4 * 1024 * 1024
_NAME = 256

# Most entries of each list, by path.
COUNTS = {
    "token_ids": MAX_TOKEN_IDS,
    "messages": 8192,
    "messages.tool_calls": 256,
    "logit_bias": 4096,
    "allowed_token_ids": MAX_TOKEN_IDS,
    "bad_words": 1024,
    "stop": 64,
    "stop_token_ids": 1024,
    "resume.token_ids": MAX_TOKEN_IDS,
    "resume.prompt_token_ids": MAX_TOKEN_IDS,
    "response_format.choice.values": 4096,
}
# Most characters of each name or short text, by path.
LENGTHS = {
    "request_id": _NAME,
    "model": 4096,
    "session_id": _NAME,
    "tool_choice": 4096,
    "messages.role": _NAME,
    "messages.tool_call_id": _NAME,
    "messages.tool_calls.id": _NAME,
    "messages.tool_calls.name": _NAME,
    "bad_words": 4096,
    "stop": 4096,
    "resume.sampling_key": 64,
}
# Text that counts towards MAX_TEXT_BYTES.
TEXTS = frozenset(
    {
        *("prompt", "messages.content", "messages.tool_calls.arguments_json", "tools_json"),
        *("response_format.json_schema", "response_format.regex", "response_format.grammar"),
        "response_format.choice.values",
    }
)


def refuse_oversized(message: Message) -> None:
    """Looks at every string and list that is set.

    Raises:
        InvalidRequest: a list or a name is too long, naming the field, with both sizes.
        TooLarge: there is too much text, with both sizes.
    """
    num_bytes, longest = 0, ("", 0)
    for path, text in _strings(message, ""):
        if path not in TEXTS:
            if len(text) > LENGTHS[path]:
                raise InvalidRequest(f"{len(text)} characters, at most {LENGTHS[path]}", field=path)
            continue
        size = len(text.encode()) if isinstance(text, str) else len(text)
        num_bytes += size
        longest = max(longest, (path, size), key=lambda pair: pair[1])
    if num_bytes > MAX_TEXT_BYTES:
        raise TooLarge(
            f"{num_bytes} bytes of text in the request, at most {MAX_TEXT_BYTES}: send less", field=longest[0]
        )


def _strings(message: Message, prefix: str) -> Iterator[tuple[str, str | bytes]]:
    """Path and value of every string; checks the lists on the way."""
    for descriptor, value in message.ListFields():
        path = prefix + descriptor.name
        is_list = descriptor.is_repeated
        if is_list and len(value) > COUNTS[path]:
            raise InvalidRequest(f"{len(value)} entries, at most {COUNTS[path]}", field=path)
        if is_map(descriptor):
            continue
        if descriptor.message_type is not None:
            for item in value if is_list else [value]:
                yield from _strings(item, f"{path}.")
        elif descriptor.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
            for item in value if is_list else [value]:
                yield path, item


def is_map(descriptor: FieldDescriptor) -> bool:
    """Whether a repeated field is a map, whose entries are numbers here."""
    entry = descriptor.message_type
    return bool(entry is not None and entry.GetOptions().map_entry)
