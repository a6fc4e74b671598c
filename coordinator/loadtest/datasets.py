"""Scripts of sessions: from JSONL, of random ids, and like those of agents. Pure but for reading a file."""

from __future__ import annotations

import json
import random
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


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows with `turns` (a list of texts) or `prompt` (a text), and perhaps `output_tokens` and `category`.

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


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise InvalidRequest(f"{where}: not JSON: {error}", field="--dataset-path") from error
    turns = row.get("turns", [row.get("prompt")]) if isinstance(row, dict) else None
    if not isinstance(turns, list) or not turns or not all(isinstance(each, str) and each for each in turns):
        raise InvalidRequest(
            f"{where}: neither 'turns', a list of texts, nor 'prompt', a text", field="--dataset-path"
        )
    tokens = row.get("output_tokens")
    if tokens is not None and not (isinstance(tokens, int) and tokens > 0):
        raise InvalidRequest(f"{where}: output_tokens {tokens!r}", field="--dataset-path")
    return {"turns": turns, "output_tokens": tokens, "category": str(row.get("category") or "")}


def _file_scripts(data: Data, rows: list[dict[str, Any]], rng: random.Random) -> tuple[Script, ...]:
    """Rows in order, from the start again when they are too few."""
    chosen = [rows[index % len(rows)] for index in range(data.num_prompts)]
    kind = PromptKind.RAW if data.raw_prompts else PromptKind.CHAT
    return tuple(
        Script(index, kind, _row_turns(row, data, rng), row["category"]) for index, row in enumerate(chosen)
    )


def _row_turns(row: dict[str, Any], data: Data, rng: random.Random) -> tuple[Turn, ...]:
    turns = [_turn(content, number, data, rng) for number, content in enumerate(row["turns"])]
    if row["output_tokens"] is None or data.output_len is not None:
        return tuple(turns)
    return tuple(
        Turn(each.content, row["output_tokens"], each.pause_seconds, each.cancel_after) for each in turns
    )


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
