"""Yardstick `grammar`: what structured output costs, and whether it keeps its word.

100 prompts at temperature 1 under one bounded JSON schema; the other arm decodes the same prompts to
the same lengths without it. Both decode plainly, so that nothing but masks and draws differs.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from coordinator.client import Answer
from coordinator.tokenizer import load_tokenizer
from deploy.bench.harness import BenchOptions, Outcome, interleave, paired_ratios, spread
from deploy.demo_model import resolve_model
from deploy.in_process import InProcess, in_process
from protos import coordinator_pb2
from protos.common_pb2 import FINISH_REASON_STOP
from target_service.build import build
from target_service.config import TargetConfig

BAR = 0.8
MIN_STOPPED = 95
CONCURRENCY = 8
MAX_TOKENS = 160
_GRAMMAR, _FREE = "grammar", "free"
_TOPICS = (
    "a nurse",
    "a pilot",
    "a baker",
    "a painter",
    "a farmer",
    "a judge",
    "a sailor",
    "a chemist",
    "a tailor",
)
_PLACES = (
    "Oslo",
    "Lima",
    "Rome",
    "Cairo",
    "Kyoto",
    "Quito",
    "Turin",
    "Accra",
    "Perth",
    "Delhi",
    "Bonn",
    "Lyon",
)
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 18, "maximum": 99},
        "skills": {
            "type": "array",
            "items": {"type": "string", "maxLength": 16},
            "minItems": 1,
            "maxItems": 3,
        },
        "remote": {"type": "boolean"},
    },
    "required": ["name", "age", "skills", "remote"],
    "additionalProperties": False,
}


def prompts(count: int) -> list[str]:
    """Different questions for the same kind of object."""
    pairs = [(topic, place) for place in _PLACES for topic in _TOPICS]
    return [
        f"Make up {topic} from {place}. Answer with one JSON object: name, age, skills (up to three), remote."
        for topic, place in pairs[:count]
    ]


def request(number: int, prompt: str, num_tokens: int | None) -> coordinator_pb2.GenerateRequest:
    """Under the schema, or (with `num_tokens`) so many tokens without it."""
    message = coordinator_pb2.GenerateRequest(
        messages=[coordinator_pb2.ChatMessage(role="user", content=prompt)],
        temperature=1.0,
        seed=number,
        max_tokens=num_tokens or MAX_TOKENS,
        ignore_eos=num_tokens is not None,
    )
    message.speculation.mode = coordinator_pb2.SPECULATION_MODE_OFF
    if num_tokens is None:
        message.response_format.json_schema = json.dumps(SCHEMA)
    return message


def follows_schema(text: str) -> bool:
    """Whether a text is an object of the schema."""
    try:
        found = json.loads(text)
    except ValueError:
        return False
    return (
        isinstance(found, dict)
        and set(found) == set(SCHEMA["required"])
        and isinstance(found["name"], str)
        and len(found["name"]) <= 24
        and type(found["age"]) is int
        and 18 <= found["age"] <= 99
        and isinstance(found["remote"], bool)
        and isinstance(found["skills"], list)
        and 1 <= len(found["skills"]) <= 3
        and all(isinstance(skill, str) and len(skill) <= 16 for skill in found["skills"])
    )


async def answers_to(
    system: InProcess, requests: Sequence[coordinator_pb2.GenerateRequest]
) -> tuple[list[Answer], float]:
    """All answers, CONCURRENCY at a time, and tokens/s."""
    places = asyncio.Semaphore(CONCURRENCY)

    async def one(message: coordinator_pb2.GenerateRequest) -> Answer:
        async with places:
            answer = Answer()
            generation = await system.coordinator.admit(message)
            async for response in generation.attach().messages():
                answer.add(response)
            return answer

    started = time.perf_counter()
    answers = await asyncio.gather(*(one(message) for message in requests))
    return answers, sum(len(answer.token_ids) for answer in answers) / (time.perf_counter() - started)


async def measure(options: BenchOptions) -> Outcome:
    """Checks 100 answers, then times a part of them against the same work without a grammar."""
    torch.set_num_threads(1)
    folder = resolve_model(options.target)
    built = await asyncio.to_thread(build, TargetConfig.load(None, target=str(folder), prefix_cache=False))
    tokenizer = load_tokenizer(built.tokenizer_files, built.description.tokenizer_hash)
    questions = prompts(100)
    async with in_process(built, None, tokenizer) as system:
        under = [request(n, prompt, None) for n, prompt in enumerate(questions)]
        answers, _ = await answers_to(system, under)
        stopped = [answer for answer in answers if answer.finish_reason == FINISH_REASON_STOP]
        broken = [answer.text for answer in stopped if not follows_schema(answer.text)]
        options.say(
            f"{len(stopped)} of {len(answers)} answers are whole, {len(broken)} of them break the schema"
        )
        part = range(100 if options.full else 32)
        free = [request(n, questions[n], len(answers[n].token_ids)) for n in part]
        arms = {
            _GRAMMAR: partial(_rate, system, [under[n] for n in part]),
            _FREE: partial(_rate, system, free),
        }
        runs = await interleave(arms, 4, options.say)
    value = spread(paired_ratios(runs, _GRAMMAR, _FREE)).median
    passed = value >= BAR and not broken and len(stopped) >= MIN_STOPPED
    records: list[dict[str, Any]] = [{**run, "unit": "tokens/s", "threads": 1} for run in runs]
    unit = f"x tokens/s without grammar ({len(stopped)} of 100 answers whole, {len(broken)} of them broken)"
    return Outcome(value, unit, BAR, passed, records)


async def _rate(system: InProcess, requests: Sequence[coordinator_pb2.GenerateRequest]) -> float:
    return (await answers_to(system, requests))[1]
