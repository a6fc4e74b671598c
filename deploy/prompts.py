"""The project's own prompts of several kinds, for the demo and the yardsticks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

_FILE = Path(__file__).parent / "prompts.jsonl"


@dataclass(frozen=True)
class Prompt:
    """kind: code, json_tool_call, question, log_reading or code_edit."""

    kind: str
    prompt: str


def read_prompts(path: Path = _FILE) -> list[Prompt]:
    """Prompts of a JSONL file with `kind` and `prompt` in each line."""
    return [Prompt(**json.loads(line)) for line in path.read_text().splitlines() if line.strip()]


def take(prompts: list[Prompt], count: int) -> list[Prompt]:
    """The first of each kind, then the second of each, .., `count` in all (fewer if there are fewer)."""
    seen: dict[str, int] = {}
    ranked = []
    for prompt in prompts:
        rank = seen.get(prompt.kind, 0)
        seen[prompt.kind] = rank + 1
        ranked.append((rank, prompt))
    ranked.sort(key=lambda item: item[0])
    return [prompt for _, prompt in ranked[:count]]
