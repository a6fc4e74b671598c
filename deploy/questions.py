"""Prompts from files, and made-up ones, as questions to a target."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coordinator.tokenizer import FileTokenizer, NoTokenizer, Tokenizer
from deploy.agent_held_out import held_out_prompts
from deploy.agent_prompts import agent_prompts
from deploy.agent_traces import agent_traces
from deploy.trace_words import TRAINING, TraceWords
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
    """A conversation up to where the assistant answers, as (role, content) pairs, or ready token ids."""

    messages: tuple[tuple[str, str], ...]
    source: str
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class MadeUp:
    """What is made up for training: prompts of agent work, and traces, so many of each context (tokens
    of the whole conversation; 0: a few turns)."""

    num_prompts: int = 0
    num_traces: int = 0
    contexts: tuple[int, ...] = (0,)


def questions(target: Path, files: Sequence[Path], made_up: MadeUp, asking: Asking) -> list[Question]:
    """Every prompt once, with one of the temperatures; prompts that are too long are left out, but the
    contexts of traces are as long as was asked for.

    Raises:
        NotFound, InvalidRequest: a file cannot be used.
    """
    texts = [text for file in files for text in _limited(read_prompts(file), asking.limit)]
    texts += agent_texts(made_up.num_prompts, asking.seed)
    for context in made_up.contexts:
        texts += trace_texts(target, made_up.num_traces, asking.seed, TRAINING, context)
    longest = max(asking.max_prompt, *made_up.contexts) if made_up.num_traces else asking.max_prompt
    return as_questions(target, texts, replace(asking, max_prompt=longest))


def agent_texts(count: int, seed: int) -> list[PromptText]:
    """Made-up prompts; their source is `agent:` and the kind."""
    made = agent_prompts(count, seed)
    return [PromptText((("user", one.prompt),), f"agent:{one.kind}") for one in made]


def held_out_agent_texts(count: int, seed: int) -> list[PromptText]:
    """Made-up prompts for measuring, of other words and templates than those for training."""
    made = held_out_prompts(count, seed)
    return [PromptText((("user", one.prompt),), f"agent:{one.kind}") for one in made]


def trace_texts(target: Path, count: int, seed: int, words: TraceWords, context: int) -> list[PromptText]:
    """Made-up agent traces; their source is `trace:` and the context.

    Args:
        target: whose tokenizer measures the context.
        context: tokens of the whole conversation; 0: a few turns.
    """
    if not count:
        return []
    tokenizer = FileTokenizer(target)
    traces = agent_traces(count, seed, words, context, lambda text: len(tokenizer.encode(text)))
    return [PromptText(trace.messages, f"trace:{context}") for trace in traces]


def as_questions(target: Path, texts: Sequence[PromptText], asking: Asking) -> list[Question]:
    """Texts through the target's chat template, less those that are too long."""
    needs_tokenizer = any(not text.token_ids for text in texts)
    tokenizer: Tokenizer = FileTokenizer(target) if needs_tokenizer else NoTokenizer()
    found: list[Question] = []
    for text in texts:
        messages = [{"role": role, "content": content} for role, content in text.messages]
        prompt = text.token_ids or tuple(tokenizer.encode_rendered(tokenizer.render_chat(messages)))
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
    """Prompts of a file: one plain line each, or JSONL with `turns` (the first one is asked), `prompt`, or
    `token_ids` for a target without a tokenizer.

    Raises:
        NotFound: no such file.
        InvalidRequest: a JSON line without a prompt.
    """
    try:
        lines = file.read_text().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise NotFound(f"cannot read {file}: {error}", field="--prompts") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            is_json = file.suffix == ".jsonl"
            yield _parsed(line, file, number) if is_json else PromptText((("user", line),), file.stem)


def _parsed(line: str, file: Path, number: int) -> PromptText:
    where = f"{file}:{number}"
    try:
        record: Any = json.loads(line)
        if "token_ids" in record:
            return PromptText((), file.stem, tuple(int(token) for token in record["token_ids"]))
        content = record["turns"][0] if "turns" in record else record["prompt"]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise InvalidRequest(
            f"{where}: expected an object with turns, prompt or token_ids", field="--prompts"
        ) from error
    if not isinstance(content, str) or not content.strip():
        raise InvalidRequest(f"{where}: the prompt is no text", field="--prompts")
    return PromptText((("user", content),), file.stem)
