"""An agent that answers questions about files by calling two functions of its own.

    dlite up                                              # prints the coordinator's address
    python docs/examples/tool_agent.py --address 127.0.0.1:PORT README.md pyproject.toml

`tool_choice="required"` puts the call under the schema of the tools: whatever the model is, its call
parses and names a real function and a real file. The agent runs it, gives the result back as a tool
message, and lets the model say the answer.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.client import Client

QUESTIONS = (
    "How many lines does {name} have?",
    "Which lines of {name} contain the word {word}?",
)
WORDS = ("the", "import", "model", "test", "file")


def count_lines(path: Path) -> int:
    """How many lines a file has."""
    return len(path.read_text(errors="replace").splitlines())


def find_word(path: Path, word: str) -> list[int]:
    """Numbers of the lines that contain a word, at most ten."""
    lines = path.read_text(errors="replace").splitlines()
    return [number for number, line in enumerate(lines, start=1) if word in line][:10]


FUNCTIONS: dict[str, Callable[..., Any]] = {"count_lines": count_lines, "find_word": find_word}


def tools_for(names: Sequence[str]) -> str:
    """The two functions as tools; arguments can only be files that are there."""
    file = {"type": "string", "enum": list(names), "description": "name of the file"}
    word = {"type": "string", "enum": list(WORDS), "description": "word to look for"}
    return json.dumps(
        [
            tool("count_lines", "Count the lines of a file.", {"path": file}),
            tool("find_word", "Find the lines of a file that contain a word.", {"path": file, "word": word}),
        ]
    )


def tool(name: str, description: str, properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


@dataclass(frozen=True)
class Step:
    """One question: what the model called, what that returned, what the model then said."""

    question: str
    name: str
    arguments: dict[str, Any]
    result: Any
    answer: str


def ask(client: Client, question: str, files: dict[str, Path], temperature: float, seed: int) -> Step:
    """Lets the model call a function, runs it, and lets the model answer.

    Raises:
        ValueError: the model's call is none (it cannot be, under the schema).
    """
    tools = tools_for(list(files))
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    first = client.ask(
        messages, tools_json=tools, tool_choice="required", temperature=temperature, seed=seed, max_tokens=160
    )
    if not first.tool_calls:
        raise ValueError(f"no call in {first.text!r}")
    call = first.tool_calls[0]
    arguments = json.loads(call.arguments_json)
    result = FUNCTIONS[call.name](**{**arguments, "path": files[arguments["path"]]})
    messages += [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)},
    ]
    last = client.ask(messages, tools_json=tools, temperature=0, max_tokens=48)
    return Step(question, call.name, arguments, result, last.text.strip())


def run(
    client: Client, paths: Sequence[Path], num_questions: int = 10, say: Callable[[str], None] = print
) -> list[Step]:
    """Asks one question after the other, about the files in turn."""
    files = {path.name: path for path in paths}
    steps = []
    for number in range(num_questions):
        name = list(files)[number % len(files)]
        question = QUESTIONS[number % len(QUESTIONS)].format(name=name, word=WORDS[number % len(WORDS)])
        step = ask(client, question, files, temperature=0.7, seed=number)
        say(f"{question}\n  {step.name}({step.arguments}) = {step.result}\n  -> {step.answer}")
        steps.append(step)
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--address", required=True, action="append", help="of a coordinator; repeatable")
    parser.add_argument("--questions", type=int, default=10)
    options = parser.parse_args()
    with Client(*options.address) as client:
        run(client, options.files, options.questions)


if __name__ == "__main__":
    main()
