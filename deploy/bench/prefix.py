"""Yardstick `prefix`: speculation costs no hits of the prefix cache.

Agents talk at the same time, each in several turns that repeat all that was said before; every other
run speculates. The hit rate is prompt tokens found over prompt tokens. Each run has a salt in its first
message, so that no run finds pages of another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coordinator.client import AsyncClient
from deploy.asking import Arm, plain_arm, speculative_arm
from deploy.bench.harness import BenchOptions, Outcome, abba, medians
from deploy.local import local_stack
from deploy.up import UNTRAINED, stack_options

BAR = 1.0
# Rates are equal when the texts are; a near-tie may make one answer longer.
TOLERANCE = 0.005
NUM_AGENTS = 3
NUM_TURNS = 4
MAX_TOKENS = 24
FILE_CHARS = 400
SOURCE = "lookup_then_drafter"
SYSTEM = "Run {}. You read source files of a project, one after the other, and say briefly what each is for."


def agent_files(agent: int) -> list[Path]:
    """What an agent reads: real files of this package, other ones for each agent."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return [files[(agent * NUM_TURNS + turn) % len(files)] for turn in range(NUM_TURNS)]


def beginning(salt: str) -> list[dict[str, str]]:
    """What all agents of a run share."""
    return [{"role": "system", "content": SYSTEM.format(salt)}]


async def converse(client: AsyncClient, agent: int, salt: str, arm: Arm) -> tuple[int, int]:
    """One agent's turns; returns (prompt tokens, prompt tokens found)."""
    messages = beginning(salt)
    num_prompt = num_found = 0
    for path in agent_files(agent):
        content = path.read_text()[:FILE_CHARS]
        messages.append({"role": "user", "content": f"{path.name}:\n\n{content}\n\nWhat is it for?"})
        answer = await client.ask(
            messages,
            session_id=f"{salt}-{agent}",
            temperature=0.0,
            max_tokens=MAX_TOKENS,
            speculation=arm.speculation,
        )
        messages.append({"role": "assistant", "content": answer.text})
        num_prompt += answer.usage.prompt_tokens
        num_found += answer.usage.cached_tokens
    return num_prompt, num_found


async def hit_rate(client: AsyncClient, salt: str, arm: Arm) -> float:
    """Of all agents together, who share the system message: it is computed before they begin."""
    await client.ask(beginning(salt), temperature=0.0, max_tokens=1, speculation=arm.speculation)
    counts = await asyncio.gather(*(converse(client, agent, salt, arm) for agent in range(NUM_AGENTS)))
    return sum(found for _, found in counts) / sum(prompt for prompt, _ in counts)


async def run_arms(
    client: AsyncClient, arms: Sequence[Arm], num_cycles: int, options: BenchOptions
) -> list[dict[str, Any]]:
    """All runs, arms in turn forwards and backwards."""
    by_name = {arm.name: arm for arm in arms}
    runs = []
    for number, name in enumerate(abba(list(by_name), num_cycles)):
        value = await hit_rate(client, f"{number:03d}", by_name[name])
        options.say(f"run {number + 1} of {len(arms) * num_cycles}: {name} {value:.4f}")
        runs.append({"arm": name, "value": value})
    return runs


async def measure(options: BenchOptions) -> Outcome:
    """Runs the yardstick: hit rate with speculation over hit rate without."""
    stack = stack_options(options.target, UNTRAINED, target_threads=1, draft_threads=1, coordinator_flags=())
    plain, drafted = plain_arm(), speculative_arm(SOURCE)
    async with local_stack(stack, options.say) as running, AsyncClient(running.coordinator.address) as client:
        work = run_arms(client, (plain, drafted), 4 if options.full else 2, options)
        runs = await running.guard(work)
    rates = medians(runs)
    value = rates[drafted.name].median / rates[plain.name].median
    passed = abs(value - BAR) <= TOLERANCE and rates[plain.name].median > 0
    return Outcome(value, "hit rate with / without speculation", BAR, passed, runs)
