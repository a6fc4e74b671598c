"""Scripts of sessions: from JSONL, of random ids, and like those of agents. Pure but for reading a file."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coordinator.loadtest.options import AGENT, CUSTOM, Data
from coordinator.loadtest.workload import PromptKind, Script, Turn
from protos.errors import InvalidRequest

DEFAULT_OUTPUT_LEN = 128


def make_scripts(data: Data, vocab_size: int, rng: random.Random) -> tuple[Script, ...]:
    """All sessions of one run.

    Args:
        vocab_size: random ids are below it.

    Raises:
        InvalidRequest: the file cannot be used, with the line.
    """
    if data.name == CUSTOM and data.path is not None:
        return _file_scripts(data, read_rows(data.path), rng)
    prefix = _random_ids(data.shared_prefix_len, vocab_size, rng)
    num_turns = data.turns if data.name == AGENT else 1
    scripts = []
    for index in range(data.num_prompts):
        first = prefix + _random_ids(_length(data.input_len, data, rng), vocab_size, rng)
        later = [
            _random_ids(_length(data.turn_len, data, rng), vocab_size, rng) for _ in range(num_turns - 1)
        ]
        turns = tuple(_turn(ids, number, data, rng) for number, ids in enumerate([first, *later]))
        scripts.append(Script(index, PromptKind.IDS, turns))
    return tuple(scripts)


@dataclass(frozen=True)
class Row:
    """One session of a file; `turns` have `content`, and what else was given of each."""

    turns: tuple[Mapping[str, Any], ...]
    output_tokens: int | None
    category: str


def read_rows(path: Path) -> list[Row]:
    """Rows with `turns` or `prompt` (a text), and perhaps `output_tokens` and `category`.

    A turn is a text, or an object with `content` and perhaps `output_tokens`, `pause_ms` (of the tool
    before it) and `cancel_after` (tokens).

    Raises:
        InvalidRequest: not such a file; names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"cannot read {path}: {error}", field="--dataset-path") from error
    rows = [_row(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise InvalidRequest(f"{path} has no rows", field="--dataset-path")
    return rows


def _row(line: str, where: str) -> Row:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise InvalidRequest(f"{where}: not JSON: {error}", field="--dataset-path") from error
    turns = row.get("turns", [row.get("prompt")]) if isinstance(row, dict) else None
    if not isinstance(turns, list) or not turns or not all(map(_is_turn, turns)):
        raise InvalidRequest(
            f"{where}: neither 'turns', a list of texts (or of objects with content, output_tokens, "
            "pause_ms, cancel_after), nor 'prompt', a text",
            field="--dataset-path",
        )
    tokens = row.get("output_tokens")
    if not _is_count(tokens):
        raise InvalidRequest(f"{where}: output_tokens {tokens!r}", field="--dataset-path")
    found = tuple(each if isinstance(each, dict) else {"content": each} for each in turns)
    return Row(found, tokens, str(row.get("category") or ""))


def _is_turn(turn: Any) -> bool:
    """A text, or a turn of a recorded agent: with its own length, its tool's time, and where it was left."""
    if not isinstance(turn, dict):
        return isinstance(turn, str) and bool(turn)
    pause = turn.get("pause_ms", 0)
    return (
        _is_turn(turn.get("content"))
        and not isinstance(turn["content"], dict)
        and turn.keys() <= {"content", "output_tokens", "pause_ms", "cancel_after"}
        and _is_count(turn.get("output_tokens"))
        and _is_count(turn.get("cancel_after"))
        and isinstance(pause, int | float)
        and 0 <= pause < math.inf
    )


def _is_count(value: Any) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0)


def _file_scripts(data: Data, rows: list[Row], rng: random.Random) -> tuple[Script, ...]:
    """Rows in order, from the start again when they are too few."""
    chosen = [rows[index % len(rows)] for index in range(data.num_prompts)]
    kind = PromptKind.RAW if data.raw_prompts else PromptKind.CHAT
    return tuple(
        Script(index, kind, _row_turns(row, data, rng), row.category) for index, row in enumerate(chosen)
    )


def _row_turns(row: Row, data: Data, rng: random.Random) -> tuple[Turn, ...]:
    """What a turn says of itself goes before what the flags say of all, but for the length."""
    found = []
    for number, given in enumerate(row.turns):
        turn = _turn(given["content"], number, data, rng)
        length = given.get("output_tokens", row.output_tokens)
        if length is not None and data.output_len is None:
            turn = replace(turn, max_tokens=length)
        if number and "pause_ms" in given:
            turn = replace(turn, pause_seconds=given["pause_ms"] / 1e3)
        found.append(replace(turn, cancel_after=given.get("cancel_after", turn.cancel_after)))
    return tuple(found)


def _turn(content: str | tuple[int, ...], number: int, data: Data, rng: random.Random) -> Turn:
    output_len = data.output_len or DEFAULT_OUTPUT_LEN
    length = output_len if isinstance(content, str) else _length(output_len, data, rng)
    pause = rng.expovariate(1 / data.pause_seconds) if number and data.pause_seconds > 0 else 0.0
    cancels = rng.random() < data.cancel_rate
    return Turn(content, length, pause, rng.randint(1, max(length // 2, 1)) if cancels else None)


def _length(mean: int, data: Data, rng: random.Random) -> int:
    """Uniform in mean * (1 +- range_ratio), at least 1."""
    low, high = round(mean * (1 - data.range_ratio)), round(mean * (1 + data.range_ratio))
    return max(rng.randint(low, high), 1)


def _random_ids(num: int, vocab_size: int, rng: random.Random) -> tuple[int, ...]:
    return tuple(rng.randrange(vocab_size) for _ in range(num))
