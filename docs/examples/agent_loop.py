"""An agent that reads files, one after the other, and asks about each in one conversation.

    dlite up                                              # prints the coordinator's address
    python docs/examples/agent_loop.py --address 127.0.0.1:PORT README.md pyproject.toml

Every turn sends the whole conversation so far. With a session id the coordinator keeps the exact token
ids of what was there, so the target finds it in its prefix cache and computes what is new: the last
column is less than a page (16 tokens) more than the new tokens.
"""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from coordinator.client import Client

MAX_FILE_CHARS = 2000
QUESTION = "In one sentence: what is this file for?"
LAST_QUESTION = "Which of these files would you read first, and why?"


@dataclass(frozen=True)
class TurnReport:
    """What one turn cost.

    Args:
        new_tokens: of the prompt, behind what the target had computed before.
        computed_tokens: prompt tokens that the target computed in this turn.
    """

    text: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    new_tokens: int

    @property
    def computed_tokens(self) -> int:
        return self.prompt_tokens - self.cached_tokens


def questions(files: Sequence[Path]) -> Iterator[str]:
    """What the agent says, turn by turn."""
    for path in files:
        content = path.read_text(errors="replace")[:MAX_FILE_CHARS]
        yield f"This is the file {path.name}:\n\n{content}\n\n{QUESTION}"
    yield LAST_QUESTION


def run(
    client: Client, files: Sequence[Path], max_tokens: int, say: Callable[[str], None] = print
) -> list[TurnReport]:
    """Reads, asks, appends, asks again."""
    session_id = f"agent-{uuid.uuid4().hex[:8]}"
    messages: list[dict[str, str]] = []
    reports: list[TurnReport] = []
    computed_before = 0
    for number, question in enumerate(questions(files), start=1):
        messages.append({"role": "user", "content": question})
        answer = client.ask(messages, session_id=session_id, temperature=0, max_tokens=max_tokens)
        messages.append({"role": "assistant", "content": answer.text})
        usage = answer.usage
        new_tokens = usage.prompt_tokens - computed_before
        report = TurnReport(
            answer.text, usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, new_tokens
        )
        # The target has computed everything but the answer's last token.
        computed_before = usage.prompt_tokens + usage.completion_tokens - 1
        reports.append(report)
        say(f"{question.splitlines()[0][:70]}\n  -> {answer.text.strip()}")
        say(
            f"  turn {number}: {report.prompt_tokens} prompt tokens, {report.cached_tokens} cached, "
            f"{report.new_tokens} new, {report.computed_tokens} computed"
        )
    return reports


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--address", required=True, action="append", help="of a coordinator; repeatable")
    parser.add_argument("--max-tokens", type=int, default=60)
    options = parser.parse_args()
    with Client(*options.address) as client:
        run(client, options.files, options.max_tokens)


if __name__ == "__main__":
    main()
