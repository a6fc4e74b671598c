"""From a `GenerateRequest` to a validated, frozen `Request`. Every refusal names the field."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from coordinator.bounds import (
    MAX_CHOICES,
    ModelLimits,
    require_stops,
    require_token_ids,
    require_whole,
)
from coordinator.formats import read_format
from coordinator.keys import choice_keys
from coordinator.parameters import read_params
from coordinator.planning import PlanDefaults, read_plan
from coordinator.prompt import Prompt, read_prompt
from coordinator.resumed import Ended, find_end
from coordinator.tenants import NOBODY, scoped
from coordinator.tokenizer import Tokenizer
from coordinator.tools import Tools, read_tools, tool_grammar
from coordinator.tuning import Plan
from coordinator.turns import Turn
from protos import common_pb2, coordinator_pb2
from protos.errors import InvalidRequest

MAX_REQUEST_ID_CHARS = 256
# Between a request's id and the number of a choice: no id that a client gives may contain it.
CHOICE_SEPARATOR = "\x1f"
_MODE_NAMES = {
    common_pb2.MODE_GREEDY: "greedy",
    common_pb2.MODE_COUPLED: "coupled",
    common_pb2.MODE_REJECTION: "rejection",
    common_pb2.MODE_MATCH: "match",
}


@dataclass(frozen=True)
class SessionPrompt:
    """A conversation of a session: its id, its rendered text, whether it continues an earlier turn."""

    session_id: str = ""
    chat_text: str = ""
    is_continued: bool = False

    @property
    def is_kept(self) -> bool:
        """Whether a later turn can continue this one."""
        return bool(self.session_id and self.chat_text)


@dataclass(frozen=True)
class Request:
    """One validated request.

    Args:
        token_ids: prompt and resumed tokens; the first `num_prompt_tokens` are the prompt.
        sampling_key: 16 bytes, the only randomness of the text (of choice 0, when there are several).
        params: what the target needs; max_tokens is always set.
        stop: stop strings.
        plan: how to speculate.
        other_keys: sampling keys of choices 1, 2, ..
        response_format: the grammar of the text, or None.
        tools: whose calls are looked for in the text, or None.
        fork_of: the request whose pages at the target hold this one's prompt, or empty.
        session: what a later turn may continue.
        ended: set when the resumed tokens are the whole text.
        tenant: whose it is; request_id and the session's id begin with it.
    """

    request_id: str
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    sampling_key: bytes
    params: common_pb2.SamplingParams
    stop: tuple[str, ...]
    plan: Plan
    other_keys: tuple[bytes, ...] = ()
    fork_of: str = ""
    response_format: common_pb2.ResponseFormat | None = None
    tools: Tools | None = None
    session: SessionPrompt = SessionPrompt()
    ended: Ended | None = None
    tenant: str = NOBODY

    @property
    def public_id(self) -> str:
        """As its client knows it."""
        return self.request_id.removeprefix(scoped(self.tenant, ""))

    @property
    def traffic(self) -> str:
        """A class of texts that are alike to a drafter: what it is for, and how tokens are drawn."""
        kind = "tools" if self.tools is not None else "format" if self.response_format is not None else "text"
        return f"{kind}-{_MODE_NAMES.get(self.params.mode, 'other')}"

    def choices(self) -> tuple[Request, ...]:
        """Each choice as a request of its own; all but the first fork that one's prompt."""
        # The prompt is the same: its log-probabilities are told once.
        params = common_pb2.SamplingParams()
        params.CopyFrom(self.params)
        params.prompt_logprobs = False
        return (
            replace(self, other_keys=()),
            *(
                replace(
                    self,
                    params=params,
                    request_id=f"{self.request_id}{CHOICE_SEPARATOR}{index}",
                    sampling_key=key,
                    other_keys=(),
                    fork_of=self.request_id,
                )
                for index, key in enumerate(self.other_keys, start=1)
            ),
        )


@dataclass(frozen=True)
class RequestContext:
    """What a request is validated against.

    Args:
        random_bytes: draws a sampling key when the request has neither seed nor key.
        turns: earlier ones of the request's session.
        tenant: whose request it is.
    """

    limits: ModelLimits
    tokenizer: Tokenizer
    defaults: PlanDefaults
    random_bytes: Callable[[int], bytes]
    turns: tuple[Turn, ...] = ()
    tenant: str = NOBODY


def parse_request(
    message: coordinator_pb2.GenerateRequest, request_id: str, context: RequestContext
) -> Request:
    """Validates a request.

    Raises:
        InvalidRequest: naming the field, with numbers.
    """
    limits = context.limits
    if message.model and message.model not in limits.model_names:
        raise InvalidRequest(
            f"no model {message.model!r} here, only {limits.model_names[0]!r}", field="model"
        )
    _check_request_id(request_id)
    keys = choice_keys(message, _num_choices(message), context.random_bytes)
    stop = require_stops(message.stop, context.tokenizer.has_text)
    params = read_params(message, limits, context.tokenizer)
    plan = read_plan(message.speculation, params.mode, context.defaults, limits.max_verify_block_size)
    tools = read_tools(message.tools_json, message.tool_choice)
    prompt = _prompt(message, context, tools)
    params.max_tokens = _max_tokens(message, len(prompt.token_ids), limits)
    require_whole("min_tokens", params.min_tokens, 0, params.max_tokens)
    resumed = tuple(message.resume.token_ids)
    require_token_ids(resumed, limits.vocab_size, "resume.token_ids")
    if len(resumed) > params.max_tokens:
        raise InvalidRequest(
            f"{len(resumed)} tokens are more than max_tokens {params.max_tokens}", field="resume.token_ids"
        )
    return Request(
        request_id=scoped(context.tenant, request_id),
        token_ids=(*prompt.token_ids, *resumed),
        num_prompt_tokens=len(prompt.token_ids),
        sampling_key=keys[0],
        params=params,
        stop=stop,
        plan=plan,
        other_keys=keys[1:],
        response_format=_format(message, tools, context.tokenizer),
        tools=tools,
        session=SessionPrompt(
            scoped(context.tenant, message.session_id) if message.session_id else "",
            prompt.chat_text,
            prompt.is_continued,
        ),
        tenant=context.tenant,
        ended=find_end(resumed, params, stop, limits.eos_token_ids, context.tokenizer.decode),
    )


def _format(
    message: coordinator_pb2.GenerateRequest, tools: Tools | None, tokenizer: Tokenizer
) -> common_pb2.ResponseFormat | None:
    """The grammar that the request gives, or that of a tool call which must be made."""
    given = read_format(message.response_format, tokenizer)
    forced = tool_grammar(tools) if tools is not None else None
    if given is not None and forced is not None:
        raise InvalidRequest(
            "an answer that must be a tool call has no other format", field="response_format"
        )
    if forced is not None and not tokenizer.has_text:
        raise InvalidRequest("the target has no tokenizer: tools need one", field="tool_choice")
    return given or forced


def _prompt(message: coordinator_pb2.GenerateRequest, context: RequestContext, tools: Tools | None) -> Prompt:
    prompt = read_prompt(message, context.tokenizer, context.turns, tools)
    if message.resume.prompt_token_ids:
        prompt = replace(prompt, token_ids=tuple(message.resume.prompt_token_ids), is_continued=True)
        require_token_ids(prompt.token_ids, context.limits.vocab_size, "resume.prompt_token_ids")
    require_token_ids(prompt.token_ids, context.limits.vocab_size, "token_ids")
    return prompt


def _check_request_id(request_id: str) -> None:
    if len(request_id) > MAX_REQUEST_ID_CHARS:
        raise InvalidRequest(
            f"{len(request_id)} characters, at most {MAX_REQUEST_ID_CHARS}", field="request_id"
        )
    if not request_id.isprintable():
        raise InvalidRequest("has characters that cannot be printed", field="request_id")


def _num_choices(message: coordinator_pb2.GenerateRequest) -> int:
    num_choices: int = message.n if message.HasField("n") else 1
    require_whole("n", num_choices, 1, MAX_CHOICES)
    if num_choices > 1 and message.HasField("resume"):
        raise InvalidRequest("one choice is resumed at a time, with its own sampling key", field="resume")
    return num_choices


def _max_tokens(message: coordinator_pb2.GenerateRequest, num_prompt_tokens: int, limits: ModelLimits) -> int:
    fits = limits.max_length - num_prompt_tokens
    if fits < 1:
        raise InvalidRequest(
            f"the prompt has {num_prompt_tokens} tokens, but prompt and answer together have room for "
            f"{limits.max_length}: it can never fit; send at most {limits.max_length - 1} prompt tokens",
            field="prompt",
        )
    if not message.HasField("max_tokens"):
        return fits
    wanted: int = message.max_tokens
    require_whole("max_tokens", wanted, 1, None)
    if wanted > fits:
        raise InvalidRequest(
            f"{num_prompt_tokens} prompt tokens + {wanted} can never fit into {limits.max_length}: "
            f"ask for at most {fits}",
            field="max_tokens",
        )
    return wanted
