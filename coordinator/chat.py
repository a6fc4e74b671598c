"""`dlite chat`: a conversation in a terminal, turn by turn.

Each turn sends the whole conversation under one session id, so only what is new is computed. Ctrl-C
ends the answer, not the conversation; what came of it stays.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from coordinator.client import Answer, Client
from coordinator.metrics import reason_name
from protos.errors import DliteError
from protos.security import Address

HELP = "/reset forgets the conversation, /exit (or Ctrl-D) ends; Ctrl-C ends an answer"


@dataclass(eq=False)
class Conversation:
    """What was said, and under which session id."""

    system: str = ""
    messages: list[dict[str, str]] = field(default_factory=list)
    session_id: str = ""

    def reset(self) -> None:
        """Begins anew."""
        self.session_id = f"chat-{uuid.uuid4().hex[:8]}"
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def add(self, role: str, content: str) -> None:
        self.messages.append({"role": role, "content": content})


class Chat:
    """Reads lines, streams answers.

    Args:
        fields: of each request, such as temperature.
        read: returns the next line; raises EOFError at the end.
    """

    def __init__(
        self, client: Client, system: str, fields: dict[str, Any], read: Callable[[], str], console: Console
    ) -> None:
        self._client = client
        self._fields = fields
        self._read = read
        self._console = console
        self._conversation = Conversation(system)
        self._conversation.reset()

    def run(self) -> None:
        """Until /exit or the end of the input."""
        self._note(HELP)
        while True:
            try:
                line = self._read().strip()
            except EOFError:
                return
            except KeyboardInterrupt:
                self._note(HELP)
                continue
            if line == "/exit":
                return
            if line == "/reset":
                self._conversation.reset()
                self._note("forgotten")
            elif line.startswith("/"):
                self._note(HELP)
            elif line:
                self._turn(line)

    def _turn(self, line: str) -> None:
        """One question and its answer; a question that fails is as if it had not been asked."""
        conversation, started = self._conversation, time.monotonic()
        conversation.add("user", line)
        stream = self._client.stream(
            conversation.messages, session_id=conversation.session_id, **self._fields
        )
        try:
            with stream:
                for text in stream:
                    print(text, end="", flush=True)
        except KeyboardInterrupt:
            self._note("\naborted")
        except DliteError as error:
            conversation.messages.pop()
            self._note(f"\nerror: {error}")
            return
        print()
        conversation.add("assistant", stream.answer.text)
        if stream.answer.is_finished:
            self._note(summary(stream.answer, time.monotonic() - started))

    def _note(self, text: str) -> None:
        self._console.print(text, style="dim", markup=False, highlight=False)


def summary(answer: Answer, seconds: float) -> str:
    """What the turn cost, in a line."""
    usage, ledger = answer.usage, answer.finished.ledger
    rate = usage.completion_tokens / seconds if seconds > 0 else 0.0
    accepted = f", accept length {ledger.accept_length:.2f}" if ledger.HasField("accept_length") else ""
    computed = usage.prompt_tokens - usage.cached_tokens
    return (
        f"[{reason_name(answer.finish_reason)}] {usage.prompt_tokens} prompt tokens, {computed} of them "
        f"computed; {usage.completion_tokens} tokens, {rate:.1f}/s{accepted}"
    )


def run_chat(addresses: Sequence[Address], system: str, fields: dict[str, Any]) -> None:
    """A chat on this terminal.

    Raises:
        DliteError: no coordinator answers.
    """
    console = Console(stderr=True, soft_wrap=True)
    with Client(*addresses) as client:
        model = client.list_models().models[0]
        console.print(f"{model.id}, context {model.max_context}", style="dim", highlight=False)
        prompt = "> " if sys.stdin.isatty() else ""
        Chat(client, system, fields, lambda: input(prompt), console).run()
