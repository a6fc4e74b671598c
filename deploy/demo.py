"""`dlite demo`: a real model across three processes, with and without proposals, side by side."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from deploy.demo_model import DEMO_MODEL, resolve_model
from deploy.shipped import AUTO, UNTRAINED, named_drafter
from deploy.untrained import LABEL
from deploy.up import NO_DRAFTER, default_threads, stack_options

if TYPE_CHECKING:
    from deploy.demo_report import DemoRow
    from deploy.local import StackOptions
    from deploy.prompts import Prompt

LOOKUP = "lookup"
DRAFTER = "drafter"
BOTH = "auto"


def demo(
    target: Annotated[str, typer.Option(help="smollm2, a model folder, or a hub name")] = DEMO_MODEL,
    drafter: Annotated[str, typer.Option(help="auto (the shipped one), untrained, none, or a folder")] = AUTO,
    prompts: Annotated[int, typer.Option(min=1, help="how many prompts, kinds in turn")] = 5,
    max_tokens: Annotated[int, typer.Option(min=1, help="tokens to generate for each")] = 64,
    threads: Annotated[int, typer.Option(min=1, help="compute threads of the target")] = default_threads(),
    draft_threads: Annotated[int, typer.Option(min=1, help="compute threads of the drafter")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Decodes prompts of several kinds speculatively and plainly on one stack, and compares."""
    err = Console(stderr=True, highlight=False, soft_wrap=True)
    drafter = named_drafter(drafter, resolve_model(target), err.print)
    options = stack_options(
        target, drafter, target_threads=threads, draft_threads=draft_threads, coordinator_flags=()
    )
    from deploy.demo_report import as_tables, report
    from deploy.prompts import read_prompts, take

    labels = labels_of(drafter)
    work = _on_a_stack(options, take(read_prompts(), prompts), labels, max_tokens, err.print)
    rows, pids = asyncio.run(work)
    if as_json:
        print(json.dumps(report(rows, headline_of(drafter, labels), pids)))
    else:
        out = Console()
        for table in as_tables(rows):
            out.print(table)


def labels_of(drafter: str) -> dict[str, str]:
    """Source -> how its rows are called."""
    if drafter == NO_DRAFTER:
        return {LOOKUP: LOOKUP}
    if drafter == UNTRAINED:
        return {LOOKUP: LOOKUP, DRAFTER: f"{DRAFTER} ({LABEL})"}
    return {LOOKUP: LOOKUP, DRAFTER: DRAFTER, BOTH: f"{BOTH} (lookup and drafter)"}


def headline_of(drafter: str, labels: dict[str, str]) -> str:
    """The rows that the speeds are about: what a request gets by default with a trained drafter, else
    lookup's."""
    return labels[LOOKUP if drafter in (NO_DRAFTER, UNTRAINED) else BOTH]


async def _on_a_stack(
    options: StackOptions,
    prompts: list[Prompt],
    labels: dict[str, str],
    max_tokens: int,
    say: Callable[[str], None],
) -> tuple[list[DemoRow], dict[str, int]]:
    from coordinator.client import AsyncClient
    from deploy.demo_run import demo_rows
    from deploy.local import local_stack

    async with local_stack(options, say) as stack, AsyncClient(stack.coordinator.address) as client:
        rows = await stack.guard(demo_rows(client, prompts, labels, max_tokens, say))
        return rows, stack.pids()
