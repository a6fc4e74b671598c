"""What is sent: scripts of sessions, and the requests they turn into as answers come. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from coordinator.loadtest.samples import Sample
from protos import coordinator_pb2
from protos.coordinator_pb2 import SPECULATION_MODE_OFF
from protos.errors import InvalidRequest

Content = str | tuple[int, ...]


class PromptKind(Enum):
    """How the content of turns becomes a prompt."""

    CHAT = "chat"  # messages, through the model's template
    RAW = "raw"  # the text itself
    IDS = "ids"  # token ids


class Arm(Enum):
    """Which half of a comparison."""

    SPECULATIVE = "speculative"
    PLAIN = "plain"


@dataclass(frozen=True)
class Turn:
    """One request of a session.

    Args:
        content: what the user, or the tool, says in this turn.
        max_tokens: of the answer; None leaves it to the server.
        pause_seconds: time of the tool, between the last answer and this turn.
        cancel_after: the client goes away when so many tokens have come; None: never.
    """

    content: Content
    max_tokens: int | None = None
    pause_seconds: float = 0.0
    cancel_after: int | None = None


@dataclass(frozen=True)
class Script:
    """A session before it is run; its number pairs it with itself in the other arm.

    `category` is what a data set calls its kind of prompt, or empty.
    """

    index: int
    kind: PromptKind
    turns: tuple[Turn, ...]
    category: str = ""


@dataclass(frozen=True)
class RequestFields:
    """What all requests of a run have in common.

    Args:
        fields: of `GenerateRequest`, by name.
        seed: of the run; every request gets its own seed from it, the same in both arms.
    """

    fields: Mapping[str, Any]
    run_id: str
    seed: int


class Conversation:
    """A session that runs: its history grows by every turn and every answer."""

    def __init__(self, script: Script, arm: Arm, common: RequestFields) -> None:
        self._script = script
        self._arm = arm
        self._common = common
        self._ids: list[int] = []
        self._text = ""
        self._messages: list[dict[str, str]] = []

    def request(self, number: int) -> coordinator_pb2.GenerateRequest:
        """The request of turn `number`, with all history before it; called once a turn, in order.

        Raises:
            InvalidRequest: a common field does not exist or cannot hold its value.
        """
        turn = self._script.turns[number]
        if isinstance(turn.content, tuple):
            self._ids.extend(turn.content)
        else:
            self._text += turn.content
            self._messages.append({"role": "user", "content": turn.content})
        session_id = f"{self._common.run_id}-{self._arm.value}-{self._script.index}"
        values: dict[str, Any] = {
            "request_id": f"{session_id}-{number}",
            "seed": (self._common.seed * 1_000_003 + self._script.index * 1009 + number) % 2**63,
            "session_id": session_id,
            **self._prompt(),
            **self._common.fields,
        }
        if turn.max_tokens is not None:
            values.setdefault("max_tokens", turn.max_tokens)
        try:
            message = coordinator_pb2.GenerateRequest(**values)
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"not a request: {error}", field="--extra-body") from error
        if self._arm is Arm.PLAIN:
            message.speculation.Clear()
            message.speculation.mode = SPECULATION_MODE_OFF
        return message

    def add_answer(self, sample: Sample) -> None:
        """Takes what came of the last turn, whole or cancelled, into the history."""
        self._ids.extend(sample.token_ids)
        self._text += sample.text
        self._messages.append({"role": "assistant", "content": sample.text})

    def _prompt(self) -> dict[str, Any]:
        if self._script.kind is PromptKind.CHAT:
            return {"messages": self._messages}
        if self._script.kind is PromptKind.RAW:
            return {"prompt": self._text}
        return {"token_ids": self._ids}
