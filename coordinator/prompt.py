"""The prompt's tokens: from text, from ids or from a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.conversation import render
from coordinator.tokenizer import Tokenizer
from coordinator.tools import Tools
from coordinator.turns import Turn, continue_turns
from protos import coordinator_pb2
from protos.errors import InvalidRequest


@dataclass(frozen=True)
class Prompt:
    """The prompt's ids.

    Args:
        chat_text: the rendered conversation; empty for other prompts.
        is_continued: whether ids of earlier turns were kept.
    """

    token_ids: tuple[int, ...]
    chat_text: str = ""
    is_continued: bool = False


def read_prompt(
    message: coordinator_pb2.GenerateRequest | coordinator_pb2.TokenizeRequest,
    tokenizer: Tokenizer,
    turns: Sequence[Turn] = (),
    tools: Tools | None = None,
) -> Prompt:
    """The ids of the one prompt form that is given.

    Args:
        turns: of the request's session; a conversation that repeats one keeps its ids.
        tools: offered in a conversation; a prompt of another form is the caller's own.

    Raises:
        InvalidRequest: none or several are given, or the prompt is empty.
    """
    given = _given_form(message)
    if given == "token_ids":
        assert isinstance(message, coordinator_pb2.GenerateRequest)
        return Prompt(tuple(message.token_ids))
    if given == "prompt":
        prompt = Prompt(tuple(tokenizer.encode(message.prompt)))
    else:
        text = render(message.messages, tools, tokenizer)
        continued = continue_turns(turns, text, tokenizer)
        ids = continued if continued is not None else tokenizer.encode_rendered(text)
        prompt = Prompt(tuple(ids), text, continued is not None)
    if not prompt.token_ids:
        raise InvalidRequest("the prompt has no tokens", field=given)
    return prompt


def _given_form(message: coordinator_pb2.GenerateRequest | coordinator_pb2.TokenizeRequest) -> str:
    token_ids = getattr(message, "token_ids", ())
    forms = {"prompt": message.prompt, "token_ids": token_ids, "messages": message.messages}
    given = [name for name, value in forms.items() if len(value)]
    if not given:
        raise InvalidRequest("the prompt is empty: give prompt, token_ids or messages", field="prompt")
    if len(given) > 1:
        raise InvalidRequest(f"{' and '.join(given)} are given: give exactly one", field=given[1])
    return given[0]


def num_prompt_chars(message: coordinator_pb2.GenerateRequest | coordinator_pb2.TokenizeRequest) -> int:
    """Size of a prompt, to decide whether tokenising it may stay on the event loop."""
    texts = (message.prompt, message.tools_json, *(item.content for item in message.messages))
    return sum(map(len, texts))
