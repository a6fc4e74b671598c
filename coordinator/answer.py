"""A whole answer, put together from the messages of its stream."""

from __future__ import annotations

from dataclasses import dataclass, field

from protos import coordinator_pb2
from protos.common_pb2 import FINISH_REASON_UNSPECIFIED, FinishReason, PositionLogprobs
from protos.errors import DliteError


@dataclass(eq=False)
class ChoiceAnswer:
    """One text.

    Args:
        first_token_index: index of token_ids[0] among the generated tokens; above 0 when a text was
            resumed by its caller.
        tool_calls: whole calls, their streamed pieces joined.
    """

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    first_token_index: int = 0
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    tool_calls: list[coordinator_pb2.ToolCall] = field(default_factory=list)
    finished: coordinator_pb2.Finished = field(default_factory=coordinator_pb2.Finished)

    @property
    def finish_reason(self) -> FinishReason:
        """Unspecified until the Finished message came."""
        return self.finished.finish_reason

    @property
    def is_finished(self) -> bool:
        return self.finish_reason != FINISH_REASON_UNSPECIFIED

    def add(self, delta: coordinator_pb2.Delta) -> None:
        """Takes a delta.

        Raises:
            DliteError: it does not begin where the last one ended.
        """
        if not self.token_ids:
            self.first_token_index = delta.first_token_index
        end = self.first_token_index + len(self.token_ids)
        if delta.first_token_index != end:
            raise DliteError(
                f"a delta begins at token {delta.first_token_index}, the last one ended at {end}"
            )
        self.token_ids.extend(delta.token_ids)
        self.text += delta.text
        self.logprobs.extend(delta.logprobs)
        for piece in delta.tool_calls:
            self._add_tool_call(piece)

    def _add_tool_call(self, piece: coordinator_pb2.ToolCall) -> None:
        while len(self.tool_calls) <= piece.index:
            self.tool_calls.append(coordinator_pb2.ToolCall(index=len(self.tool_calls)))
        call = self.tool_calls[piece.index]
        call.id = call.id or piece.id
        call.name = call.name or piece.name
        call.arguments_json += piece.arguments_json


@dataclass(eq=False)
class Answer:
    """All choices of one request. `text`, `token_ids` and `finished` are those of the first.

    Args:
        sampling_keys: of each choice, to resume it.
        prompt_token_ids: only of a prompt that continues an earlier turn of its session.
    """

    request_id: str = ""
    sampling_keys: list[bytes] = field(default_factory=list)
    num_prompt_tokens: int = 0
    prompt_token_ids: list[int] = field(default_factory=list)
    prompt_logprobs: list[PositionLogprobs] = field(default_factory=list)
    choices: list[ChoiceAnswer] = field(default_factory=lambda: [ChoiceAnswer()])

    @property
    def sampling_key(self) -> bytes:
        return self.sampling_keys[0] if self.sampling_keys else b""

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def token_ids(self) -> list[int]:
        return self.choices[0].token_ids

    @property
    def tool_calls(self) -> list[coordinator_pb2.ToolCall]:
        return self.choices[0].tool_calls

    @property
    def finished(self) -> coordinator_pb2.Finished:
        return self.choices[0].finished

    @property
    def usage(self) -> coordinator_pb2.Usage:
        return self.finished.usage

    @property
    def finish_reason(self) -> FinishReason:
        """Unspecified until the Finished message came."""
        return self.choices[0].finish_reason

    @property
    def is_finished(self) -> bool:
        """Whether every choice is."""
        return all(choice.is_finished for choice in self.choices)

    def add(self, message: coordinator_pb2.GenerateResponse) -> str:
        """Takes one message and returns its text.

        Raises:
            DliteError: a delta does not begin where the last one of its choice ended.
        """
        body = message.WhichOneof("body")
        if body == "started":
            started = message.started
            self.request_id = started.request_id
            self.sampling_keys = list(started.choice_sampling_keys) or [started.sampling_key]
            self.num_prompt_tokens = started.num_prompt_tokens
            self.prompt_token_ids = list(started.prompt_token_ids)
            self.prompt_logprobs = list(started.prompt_logprobs)
            self.choices = [ChoiceAnswer() for _ in self.sampling_keys]
        elif body == "finished":
            self.choices[message.finished.index].finished = message.finished
        elif body == "delta":
            self.choices[message.delta.index].add(message.delta)
            return str(message.delta.text)
        return ""
