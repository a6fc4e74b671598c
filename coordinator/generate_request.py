"""The request of `dlite generate`: a file of parameters, and flags that overrule it.

The file is the request as JSON, by the names of its fields. Where protobuf's JSON is clumsy the plain
form is taken too: a schema as an object, options and tools as lists, speculation by short names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from coordinator.coordinator import SOURCES
from protos import coordinator_pb2
from protos.errors import InvalidRequest

Flags = Mapping[str, Any]

OFF, GREEDY = "off", "greedy"
MODES = {
    "auto": coordinator_pb2.SPECULATION_MODE_AUTO,
    OFF: coordinator_pb2.SPECULATION_MODE_OFF,
    "coupled": coordinator_pb2.SPECULATION_MODE_COUPLED,
    "rejection": coordinator_pb2.SPECULATION_MODE_REJECTION,
    "match": coordinator_pb2.SPECULATION_MODE_MATCH,
}
# Flags that have the name of their field.
_LAW = (
    *("temperature", "top_k", "top_p", "min_p", "seed", "n"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)
_SINGLE = (
    *_LAW,
    *("max_tokens", "min_tokens", "ignore_eos", "logprobs", "top_logprobs", "prompt_logprobs"),
    *("tool_choice", "request_id", "session_id"),
)
# Flags that are given once for each value, and the field that takes them all.
_REPEATED = {
    "stop": "stop",
    "stop_token_id": "stop_token_ids",
    "allowed_token_id": "allowed_token_ids",
    "bad_word": "bad_words",
}
_PROMPTS = ("prompt", "token_ids", "messages")


def build_request(prompt: str, flags: Flags) -> coordinator_pb2.GenerateRequest:
    """The request of these flags.

    Args:
        prompt: as typed.
        flags: those that were given, by the names of `generate`'s parameters; others are not looked at.

    Raises:
        InvalidRequest: naming the flag; a file that is none, a value that has no place in the request.
    """
    path: Path | None = flags.get("params")
    request = coordinator_pb2.GenerateRequest() if path is None else read_params(path)
    _set_prompt(request, prompt, flags)
    for name in _SINGLE:
        _set(request, name, flags)
    if request.top_logprobs and not request.prompt_logprobs:
        request.logprobs = True
    for name, field in _REPEATED.items():
        if flags.get(name):
            request.ClearField(field)
            _extend(request, field, flags[name], name)
    _set_bias(request, flags.get("logit_bias", ()))
    _set_format(request, flags)
    if "tools" in flags:
        request.tools_json = _text(flags["tools"], "tools")
    _set_speculation(request, flags)
    return request


def read_params(path: Path) -> coordinator_pb2.GenerateRequest:
    """The request that a file of parameters describes; it has no prompt.

    Raises:
        InvalidRequest: of the flag --params: the file cannot be read, or is no request.
    """
    try:
        document = json.loads(_text(path, "params"))
    except ValueError as error:
        raise InvalidRequest(f"{path} is not JSON: {error}", field="--params") from error
    if not isinstance(document, dict):
        raise InvalidRequest(f"{path} has no object with fields of a request", field="--params")
    message = coordinator_pb2.GenerateRequest()
    try:
        json_format.ParseDict(_plain_forms(document), message)
    except json_format.ParseError as error:
        raise InvalidRequest(f"{path} is no request: {error}", field="--params") from error
    if any(getattr(message, name) for name in _PROMPTS):
        raise InvalidRequest("the prompt is the command's argument, not the file's", field="--params")
    return message


def _plain_forms(document: Mapping[str, Any]) -> dict[str, Any]:
    """Writes the plain forms of a document as protobuf's JSON."""
    fields = dict(document)
    tools = fields.pop("tools", fields.get("tools_json"))
    if tools is not None:
        fields["tools_json"] = tools if isinstance(tools, str) else json.dumps(tools)
    form = fields.get("response_format")
    if isinstance(form, dict):
        schema, choice = form.get("json_schema"), form.get("choice")
        if schema is not None and not isinstance(schema, str):
            fields["response_format"] = {**form, "json_schema": json.dumps(schema)}
        elif isinstance(choice, list):
            fields["response_format"] = {**form, "choice": {"values": choice}}
    speculation = fields.get("speculation")
    if isinstance(speculation, dict):
        names: dict[str, Mapping[str, Any]] = {"mode": MODES, "source": SOURCES}
        fields["speculation"] = {
            name: names[name].get(value, value) if name in names and isinstance(value, str) else value
            for name, value in speculation.items()
        }
    return fields


def _set_prompt(request: coordinator_pb2.GenerateRequest, prompt: str, flags: Flags) -> None:
    is_chat, system = flags.get("chat", True), flags.get("system", "")
    if system and not is_chat:
        raise InvalidRequest("a raw prompt has no system message", field="--system")
    if not is_chat:
        request.prompt = prompt
        return
    if system:
        request.messages.add(role="system", content=system)
    request.messages.add(role="user", content=prompt)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _set(message: Any, name: str, flags: Flags) -> None:
    if name not in flags:
        return
    try:
        setattr(message, name, flags[name])
    except ValueError as error:
        raise InvalidRequest(f"{flags[name]} is not possible: {error}", field=_flag(name)) from error


def _extend(message: Any, field: str, values: list[Any], name: str) -> None:
    try:
        getattr(message, field).extend(values)
    except ValueError as error:
        raise InvalidRequest(f"{values} is not possible: {error}", field=_flag(name)) from error


def _set_bias(request: coordinator_pb2.GenerateRequest, entries: list[str]) -> None:
    if entries:
        request.ClearField("logit_bias")
    for entry in entries:
        token_id, _, bias = entry.partition("=")
        try:
            request.logit_bias[int(token_id)] = float(bias)
        except ValueError as error:
            raise InvalidRequest(
                f"{entry!r}: expected TOKEN_ID=BIAS, such as 42=-100", field="--logit-bias"
            ) from error


def _set_format(request: coordinator_pb2.GenerateRequest, flags: Flags) -> None:
    given = [name for name in ("json_schema", "regex", "choice", "grammar") if flags.get(name)]
    if len(given) > 1:
        raise InvalidRequest(f"an answer has one form, not {' and '.join(given)}", field=_flag(given[1]))
    for name in given:
        request.ClearField("response_format")
        if name == "choice":
            request.response_format.choice.values.extend(flags[name])
        else:
            value = flags[name]
            setattr(request.response_format, name, value if name == "regex" else _text(value, name))


def _text(path: Path, name: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"cannot read {path}: {error}", field=_flag(name)) from error


def _set_speculation(request: coordinator_pb2.GenerateRequest, flags: Flags) -> None:
    speculation = request.speculation
    for name in ("num_draft_tokens", "verify_block_size"):
        _set(speculation, name, flags)
    mode, source = flags.get("mode"), flags.get("source")
    if mode == GREEDY:
        if request.temperature:
            raise InvalidRequest(f"greedy is temperature 0, not {request.temperature:g}", field="--mode")
        request.temperature, mode = 0.0, "auto"
    if mode is not None:
        speculation.mode = _named(mode, MODES, (GREEDY,), "mode")
    if source == OFF:
        speculation.mode = coordinator_pb2.SPECULATION_MODE_OFF
    elif source is not None:
        speculation.source = _named(source, SOURCES, (OFF,), "source")


def _named(value: str, names: Mapping[str, Any], others: tuple[str, ...], flag: str) -> Any:
    if value not in names:
        raise InvalidRequest(
            f"unknown {value!r}: one of {', '.join(dict.fromkeys((*names, *others)))}", field=_flag(flag)
        )
    return names[value]
