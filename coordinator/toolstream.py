"""From an answer's text to what the client sees of it: content, and tool calls that are whole.

The text goes through `transformers`' response parser, by the tokenizer's own response template or the
widely used `<tool_call>` JSON. What comes out is a function of the text alone, not of the pieces it
came in: a call is told when its end has come.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.conversation import CALL_CLOSE, CALL_OPEN
from coordinator.tools import Tools
from protos.coordinator_pb2 import ToolCall

log = logging.getLogger("dlite.coordinator")

_CALLS = "tool_calls"
_CONTENT = "content"
# Calls as JSON between tags: the format of Hermes and Qwen models, and what `conversation` spells out.
CALL_TEMPLATE: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        _CALLS: {
            # The separator before a call belongs to neither side.
            "open_pattern": r"\s*" + CALL_OPEN,
            "close": CALL_CLOSE,
            "repeats": True,
            "content": "json",
            "content_args": {"allow_non_json": True},
            "transform": {"type": "function", "function": "{content}"},
        },
        _CONTENT: {"content": "text"},
    },
}


@dataclass(frozen=True)
class ToolUpdate:
    """What a piece of text completed."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()


class ToolStream:
    """The answer of one choice.

    Args:
        template: the tokenizer's response template, or None for `CALL_TEMPLATE`.
        answer_start: what the chat template has written of the answer already.
        sampling_key: calls get ids from it, so a text that is resumed has the same.
    """

    def __init__(
        self,
        template: Mapping[str, Any] | None,
        answer_start: str,
        tools: Tools,
        sampling_key: bytes,
    ) -> None:
        self.num_calls = 0
        self._template = dict(template or CALL_TEMPLATE)
        self._answer_start = answer_start
        self._tools: list[Any] = tools.for_template
        self._key = sampling_key
        self._raw = ""  # of the region that is open
        self._fed = ""
        self._num_said = 0  # characters of content
        self._parser: Any = self._new_parser()

    def _new_parser(self) -> Any:
        from transformers.utils.chat_parsing import ResponseParser
        from transformers.utils.chat_parsing.response_templates import load_response_template

        loaded = load_response_template(self._template)
        # Without the anchor, all of the start would be taken for text of the answer.
        has_anchor = loaded.start_anchor_re.search(self._answer_start) is not None
        return ResponseParser(loaded, prefix=self._answer_start if has_anchor else "", tools=self._tools)

    def feed(self, text: str) -> ToolUpdate:
        """Takes the next text; what may still become a tag or a call is held back."""
        if self._parser is None:
            return ToolUpdate(text)
        self._fed += text
        try:
            update = self._update(self._parser.feed(text), is_end=False)
        except ValueError as error:
            return self._give_up(error)
        self._num_said += len(update.text)
        return update

    def finish(self) -> ToolUpdate:
        """The text has ended: gives what was held back."""
        if self._parser is None:
            return ToolUpdate()
        try:
            parser, self._parser = self._parser, None
            return self._update(parser.finalize()[1], is_end=True)
        except ValueError as error:
            return self._give_up(error)

    def _update(self, events: Sequence[Mapping[str, Any]], is_end: bool) -> ToolUpdate:
        text: list[str] = []
        calls: list[ToolCall] = []
        for event in events:
            kind, field = event["type"], event["field"]
            if kind == "region_open":
                self._raw = ""
            elif kind == "region_chunk":
                self._raw += event["text"]
                if field != _CALLS:
                    text.append(event["text"])
            elif kind == "region_close" and field == _CALLS:
                found = self._calls_of(event["value"])
                calls += found
                if not found:
                    # No call after all: the client sees what the model wrote.
                    text.append(CALL_OPEN + self._raw + ("" if is_end else CALL_CLOSE))
        return ToolUpdate("".join(text), tuple(calls))

    def _calls_of(self, value: Any) -> list[ToolCall]:
        values = value if isinstance(value, list) else [value]
        functions: list[Any] = [item.get("function") for item in values if isinstance(item, dict)]
        if not functions or not all(map(_is_call, functions)):
            return []
        return [self._call(function) for function in functions]

    def _call(self, function: Mapping[str, Any]) -> ToolCall:
        index = self.num_calls
        self.num_calls += 1
        arguments = function.get("arguments", {})
        digest = hashlib.sha256(self._key + index.to_bytes(4, "little")).hexdigest()[:16]
        return ToolCall(
            index=index,
            id=f"call_{digest}",
            name=function["name"],
            arguments_json=arguments
            if isinstance(arguments, str)
            else json.dumps(arguments, ensure_ascii=False),
        )

    def _give_up(self, error: ValueError) -> ToolUpdate:
        """The model wrote what its own template cannot read: from there on everything is text.

        The failed piece may have held more than the fault, so all is read again, character by character.
        """
        log.warning("an answer does not follow its response template", exc_info=error)
        self._parser, num_told, num_said = None, self.num_calls, self._num_said
        parser, self.num_calls, self._raw = self._new_parser(), 0, ""
        text: list[str] = []
        calls: list[ToolCall] = []
        rest = ""
        for place, character in enumerate(self._fed):
            try:
                update = self._update(parser.feed(character), is_end=False)
            except ValueError:
                rest = self._raw + self._fed[place + 1 :]
                break
            text.append(update.text)
            calls += update.calls
        return ToolUpdate(("".join(text) + rest)[num_said:], tuple(calls[num_told:]))


def _is_call(function: Any) -> bool:
    return (
        isinstance(function, dict)
        and isinstance(function.get("name"), str)
        and isinstance(function.get("arguments", {}), dict | str)
    )
