"""Asks one coordinator the demo's prompts, every arm in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from coordinator.client import AsyncClient
from deploy.asking import Reply, ask, greedy_chat, plain_arm, speculative_arm
from deploy.demo_report import DemoRow
from deploy.prompts import Prompt

_WARM_UP_TOKENS = 4


async def demo_rows(
    client: AsyncClient,
    prompts: Sequence[Prompt],
    labels: Mapping[str, str],
    max_tokens: int,
    say: Callable[[str], None],
) -> list[DemoRow]:
    """Every prompt plainly and with each source, arms in turn forwards and backwards, so that a
    machine that gets slower favours none.

    Args:
        labels: source ("lookup", "drafter") -> how its rows are called.
    """
    arms = [plain_arm(), *(speculative_arm(source) for source in labels)]
    for arm in arms:
        await ask(client, greedy_chat("Hello", _WARM_UP_TOKENS, arm))
    rows = []
    for number, prompt in enumerate(prompts):
        replies: dict[str, Reply] = {}
        for arm in arms if number % 2 == 0 else arms[::-1]:
            replies[arm.name] = await ask(client, greedy_chat(prompt.prompt, max_tokens, arm))
        rows += [DemoRow(prompt, labels[s], replies[s], replies[arms[0].name]) for s in labels]
        num_tokens = len(replies[arms[0].name].token_ids)
        say(f"prompt {number + 1} of {len(prompts)} ({prompt.kind}): {num_tokens} tokens, {len(arms)} ways")
    return rows
