"""Prompts from files, and made-up ones, as questions to a target."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.tokenizer import FileTokenizer
from deploy.agent_prompts import agent_prompts
from protos.errors import InvalidRequest, NotFound
from target_service.answering import Question
from target_service.answering_job import keyed
from target_service.commands import SamplingParams


@dataclass(frozen=True)
class Asking:
    """How questions are put: temperatures to choose from, lengths in tokens, prompts a file (0: all)."""

    temperatures: tuple[float, ...] = (0.0,)
    max_tokens: int = 160
    max_prompt: int = 1024
    limit: int = 0
    seed: int = 0


@dataclass(frozen=True)
class PromptText:
    """A conversation up to where the assistant answers, as (role, content) pairs."""

    messages: tuple[tuple[str, str], ...]
    source: str


def questions(target: Path, files: Sequence[Path], num_made_up: int, asking: Asking) -> list[Question]:
    """Every prompt once, with one of the temperatures; prompts that are too long are left out.

    Raises:
        NotFound, InvalidRequest: a file cannot be used.
    """
    texts = [text for file in files for text in _limited(read_prompts(file), asking.limit)]
    return as_questions(target, [*texts, *agent_texts(num_made_up, asking.seed)], asking)


def agent_texts(count: int, seed: int) -> list[PromptText]:
    """Made-up prompts; their source is `agent:` and the kind."""
    made = agent_prompts(count, seed)
    return [PromptText((("user", one.prompt),), f"agent:{one.kind}") for one in made]


def as_questions(target: Path, texts: Sequence[PromptText], asking: Asking) -> list[Question]:
    """Texts through the target's chat template, less those that are too long."""
    tokenizer = FileTokenizer(target)
    found: list[Question] = []
    for text in texts:
        messages = [{"role": role, "content": content} for role, content in text.messages]
        prompt = tuple(tokenizer.encode_chat(messages))
        if len(prompt) <= asking.max_prompt:
            found.append(_question(prompt, text.source, len(found), asking))
    return found


def _question(prompt: tuple[int, ...], source: str, index: int, asking: Asking) -> Question:
    key = keyed(asking.seed, index)
    # By the key, not in turn: kinds of prompts come in turn too.
    temperature = asking.temperatures[key[0] % len(asking.temperatures)]
    params = SamplingParams(temperature=temperature, max_tokens=asking.max_tokens)
    return Question(prompt, params, key, source)


def _limited(texts: Iterator[PromptText], limit: int) -> Iterator[PromptText]:
    for index, text in enumerate(texts):
        if limit and index >= limit:
            return
        yield text


def read_prompts(file: Path) -> Iterator[PromptText]:
    """Prompts of a file: JSONL with `turns` (the first one is asked) or `prompt`, or one plain line each.

    Raises:
        NotFound: no such file.
        InvalidRequest: a JSON line without a prompt.
    """
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise NotFound(f"cannot read {file}: {error}", field="--prompts") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            content = _content(line, f"{file}:{number}") if file.suffix == ".jsonl" else line
            yield PromptText((("user", content),), file.stem)


def _content(line: str, where: str) -> str:
    try:
        record: Any = json.loads(line)
        content = record["turns"][0] if "turns" in record else record["prompt"]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise InvalidRequest(
            f"{where}: expected an object with turns or prompt", field="--prompts"
        ) from error
    if not isinstance(content, str) or not content.strip():
        raise InvalidRequest(f"{where}: the prompt is no text", field="--prompts")
    return content
