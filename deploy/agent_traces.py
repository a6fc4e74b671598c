"""Made-up agent traces: multi-turn tool loops up to a question, with histories of a wanted length.

Several questions in a row share one history, as turns of one agent do. Trace i of a seed is a function
of (seed, words, i) and of the wanted length: more of them never changes the first ones.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deploy.trace_words import TraceWords

Message = tuple[str, str]  # role, content
NUM_SHARING = 4
KINDS = ("json_tool_call", "code_edit", "log_reading")
_LEVELS = ("INFO", "INFO", "WARN", "ERROR")
_SHORT_TURNS = (1, 4)
# What a chat template puts around a message.
_TEMPLATE_TOKENS = 6


@dataclass(frozen=True)
class Trace:
    """A conversation whose next message is the target's; `kind` is of the last question."""

    kind: str
    messages: tuple[Message, ...]


def agent_traces(
    count: int,
    seed: int,
    words: TraceWords,
    context: int = 0,
    count_tokens: Callable[[str], int] = len,
) -> list[Trace]:
    """The first traces of a seed; `NUM_SHARING` in a row have the same history.

    Args:
        context: tokens of the whole conversation, nearly reached and not exceeded; 0: a few turns.
        count_tokens: of a text.
    """
    found: list[Trace] = []
    for group in range(-(-count // NUM_SHARING)):
        rng = random.Random(f"{seed}/{context}/{group}")
        questions = [_question(rng, words, KINDS[i % len(KINDS)]) for i in range(NUM_SHARING)]
        longest = max(count_tokens(text) for _, text in questions) + _TEMPLATE_TOKENS
        history = _history(rng, words, context - longest if context else 0, count_tokens)
        found += [Trace(kind, (*history, ("user", text))) for kind, text in questions]
    return found[:count]


def _question(rng: random.Random, words: TraceWords, kind: str) -> Message:
    """(kind, text)."""
    return kind, _filled(rng, rng.choice(words.questions[kind]), words)


def _history(
    rng: random.Random, words: TraceWords, budget: int, count_tokens: Callable[[str], int]
) -> list[Message]:
    """System and task, then calls and results: as many as fit the budget, or (0) a few."""
    tools = json.dumps([{"name": name, "parameters": {key: "string"}} for name, key in words.tools.items()])
    history = [
        ("system", rng.choice(words.systems).format(tools=tools)),
        ("user", _filled(rng, rng.choice(words.tasks), words)),
    ]
    if not budget:
        return history + [part for _ in range(rng.randint(*_SHORT_TURNS)) for part in _turn(rng, words)]
    used = _tokens(history, count_tokens)
    misses = 0
    while misses < 5:  # the last turns are chosen small enough to fit
        turn = _turn(rng, words)
        size = _tokens(turn, count_tokens)
        if used + size <= budget:
            history += turn
            used += size
        else:
            misses += 1
    return history


def _tokens(messages: Sequence[Message], count_tokens: Callable[[str], int]) -> int:
    return sum(count_tokens(content) + _TEMPLATE_TOKENS for _, content in messages)


def _turn(rng: random.Random, words: TraceWords) -> list[Message]:
    """One call and its result."""
    tool = rng.choice(sorted(words.tools))
    shows_log = "log" in tool or "journal" in tool
    value = rng.choice(words.services if shows_log else words.files)
    call = words.call_form.format(tool=tool, arguments=json.dumps({words.tools[tool]: value}))
    output = _log(rng, words) if shows_log else _file(rng, words)
    return [("assistant", call), ("user", words.result_form.format(tool=tool, output=output))]


def _log(rng: random.Random, words: TraceWords) -> str:
    lines = []
    second = rng.randint(60, 3000)
    for _ in range(rng.randint(3, 9)):
        second += rng.randint(0, 20)
        event = rng.choice(words.events).format(n=rng.randint(2, 900))
        clock = f"{second // 60:02}:{second % 60:02}"
        lines.append(
            words.log_line.format(
                second=clock, level=rng.choice(_LEVELS), service=rng.choice(words.services), event=event
            )
        )
    return "\n".join(lines)


def _file(rng: random.Random, words: TraceWords) -> str:
    pieces = [_filled(rng, rng.choice(words.code), words) for _ in range(rng.randint(1, 4))]
    return "\n".join(pieces)


def _filled(rng: random.Random, form: str, words: TraceWords) -> str:
    name, other = rng.sample(words.names, 2)
    return form.format(
        name=name,
        other=other,
        n=rng.randint(2, 90),
        file=rng.choice(words.files),
        service=rng.choice(words.services),
    )
