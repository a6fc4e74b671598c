"""The running stacks of the yardstick `speedup`: pilot, rounds of fixed size, and the comparison itself."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coordinator.client import AsyncClient
from deploy.asking import Arm, Reply, ask, greedy_chat, plain_arm, speculative_arm
from deploy.bench.harness import Say, abba, spread
from deploy.bench.speedup_figures import Pair, cost_row
from deploy.bench.speedup_layouts import Layout
from deploy.demo_report import mean_accept_length, tokens_per_second
from deploy.local import LocalStack, StackOptions, local_stack

PLAIN, TUNED = "plain", "auto"
FIXED_BLOCKS = (2, 4, 8)
_PILOT_TOKENS = 32
_WARM_UP = "Hello"


@dataclass(frozen=True, eq=False)
class Running:
    """A stack that runs, and its client."""

    layout: Layout
    client: AsyncClient
    stack: LocalStack

    async def ask(self, prompt: str, max_tokens: int, arm: Arm) -> Reply:
        """Raises:
        Unavailable, DliteError: a service ended, or the request failed.
        """
        return await self.stack.guard(ask(self.client, greedy_chat(prompt, max_tokens, arm)))

    def arms(self) -> list[Arm]:
        """What is tried on this stack."""
        return [plain_arm(), speculative_arm(TUNED)] if self.layout.has_drafter else [plain_arm()]


@contextlib.asynccontextmanager
async def running(layout: Layout, stack: StackOptions, say: Say) -> AsyncIterator[Running]:
    """A stack in a layout, warmed up."""
    say(f"stack {layout.name}")
    async with (
        local_stack(layout.options(stack), say) as started,
        AsyncClient(started.coordinator.address) as client,
    ):
        found = Running(layout, client, started)
        for arm in found.arms():
            await found.ask(_WARM_UP, 4, arm)
        yield found


@dataclass(eq=False)
class Tried:
    """One arm on one stack, and its pilot replies, cycle by cycle."""

    running: Running
    arm: Arm
    cycles: list[list[Reply]] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Median over cycles of tokens/s."""
        return spread([tokens_per_second(replies) for replies in self.cycles]).median

    @property
    def replies(self) -> list[Reply]:
        return [reply for replies in self.cycles for reply in replies]

    def as_record(self) -> dict[str, Any]:
        return {
            "layout": self.running.layout.name,
            "kernel": self.running.layout.kernel,
            "arm": self.arm.name,
            "tokens_per_second": self.rate,
            "tau": mean_accept_length(self.replies),
        }


async def pilot(stacks: Sequence[Running], prompts: Sequence[str], say: Say) -> list[Tried]:
    """Every arm of every stack on the same prompts, in turn forwards and backwards."""
    tried = {f"{one.layout.name}: {arm.name}": Tried(one, arm) for one in stacks for arm in one.arms()}
    for name in abba(list(tried), 2):
        one = tried[name]
        one.cycles.append([await one.running.ask(p, _PILOT_TOKENS, one.arm) for p in prompts])
    for name, one in tried.items():
        say(f"pilot, {name}: {one.rate:.1f} tokens/s")
    return list(tried.values())


def fastest(tried: Sequence[Tried], arm: str) -> Tried:
    """The best layout of an arm."""
    return max((one for one in tried if one.arm.name == arm), key=lambda one: one.rate)


async def fixed_costs(stack: Running, prompts: Sequence[str], plain_ms: float) -> list[dict[str, Any]]:
    """What rounds of fixed size cost with the drafter alone.

    Args:
        plain_ms: T_1 of the fastest plain decoding.
    """
    arms = {v: speculative_arm("drafter", v) for v in FIXED_BLOCKS}
    replies: dict[int, list[Reply]] = {v: [] for v in arms}
    for number, prompt in enumerate(prompts):
        for v in FIXED_BLOCKS if number % 2 == 0 else FIXED_BLOCKS[::-1]:
            replies[v].append(await stack.ask(prompt, _PILOT_TOKENS, arms[v]))
    return [cost_row(v, found, plain_ms) for v, found in replies.items()]


async def compare_arms(
    kinds: Mapping[str, Sequence[str]], plain: Running, tuned: Running, max_tokens: int, say: Say
) -> list[tuple[Pair, str]]:
    """Every prompt A-B-B-A; pairs with their prompts."""
    arms = {PLAIN: (plain, plain_arm()), TUNED: (tuned, speculative_arm(TUNED))}
    found = []
    for kind, prompts in kinds.items():
        for prompt in prompts:
            replies: dict[str, list[Reply]] = {PLAIN: [], TUNED: []}
            for name in abba([PLAIN, TUNED], 2):
                stack, arm = arms[name]
                replies[name].append(await stack.ask(prompt, max_tokens, arm))
            pair = Pair(kind, tuple(replies[PLAIN]), tuple(replies[TUNED]))
            found.append((pair, prompt))
        ratios = [pair.speedup for pair, _ in found if pair.kind == kind]
        say(f"{kind}: {spread(ratios).median:.2f}x plain over {len(ratios)} prompts")
    return found
