"""`dlite up`: the whole system on one machine, until Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from deploy.child import Ready
from deploy.demo_model import DEMO_MODEL, resolve_model
from deploy.local import LocalStack, StackOptions, local_stack
from deploy.shipped import AUTO, named_drafter
from deploy.shipped import UNTRAINED as UNTRAINED
from deploy.supervision import RestartPolicy
from deploy.untrained import LABEL, untrained_drafter
from protos.errors import InvalidRequest

NO_DRAFTER = "none"


def default_threads() -> int:
    """Compute threads for the target: every core but one, which the drafter and the coordinator share."""
    return max((os.cpu_count() or 2) - 1, 1)


def waiting_policy(num_threads: int, num_cores: int) -> dict[str, str]:
    """How idle compute threads wait, as environment: when services share cores, those that wait must sleep,
    or they spin on the cores that others need."""
    return {"OMP_WAIT_POLICY": "PASSIVE"} if num_threads > num_cores else {}


def stack_options(
    target: str, drafter: str, *, target_threads: int, draft_threads: int, coordinator_flags: tuple[str, ...]
) -> StackOptions:
    """Resolves names to folders, and taps the target's layers that the drafter reads.

    Args:
        target: what `resolve_model` takes.
        drafter: "none", "untrained", or a checkpoint folder ("auto" is for `named_drafter`).

    Raises:
        InvalidRequest, ContractMismatch: something cannot be used; names the flag or field.
    """
    model = resolve_model(target)
    folder = drafter_folder(drafter, model)
    target_flags: tuple[str, ...] = ()
    if folder is not None:
        from draft_service.checkpoint import read_draft_config

        layers = read_draft_config(folder).target_layer_ids
        target_flags = ("--tapped-layers", ",".join(map(str, layers)))
    return StackOptions(
        target=model,
        drafter=folder,
        target_flags=target_flags,
        coordinator_flags=coordinator_flags,
        target_threads=target_threads,
        draft_threads=draft_threads,
        environment=waiting_policy(target_threads + draft_threads, os.cpu_count() or 1),
    )


def drafter_folder(drafter: str, model: Path) -> Path | None:
    """The checkpoint folder of a drafter; None for "none".

    Raises:
        InvalidRequest: no such checkpoint.
    """
    if drafter == NO_DRAFTER:
        return None
    if drafter == UNTRAINED:
        return untrained_drafter(model)
    folder = Path(drafter).expanduser()
    if not (folder / "config.json").is_file():
        raise InvalidRequest(
            f"{drafter!r} is none of {AUTO!r}, {NO_DRAFTER!r}, {UNTRAINED!r}, and no checkpoint folder",
            field="--drafter",
        )
    return folder.resolve()


def describe(stack: LocalStack, target: str, drafter: str) -> dict[str, Any]:
    """The object that `dlite up --json` prints."""
    services = {"coordinator": stack.coordinator, "target": stack.target, "draft": stack.draft}
    return {
        **{name: _as_json(ready) for name, ready in services.items()},
        "model": target,
        "drafter": None if drafter == NO_DRAFTER else drafter,
    }


def _as_json(ready: Ready | None) -> dict[str, Any] | None:
    """Addresses and pid; None for a service that was not started."""
    if ready is None:
        return None
    return {name: value for name, value in asdict(ready).items() if value != ""}


async def until_signal(work: Coroutine[Any, Any, None]) -> None:
    """Runs the work until it ends, or stops it at SIGINT or SIGTERM and returns."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()

    def stop() -> None:
        stopped.set()
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        await task
    except asyncio.CancelledError:
        if not stopped.is_set():
            raise


async def _serve(
    options: StackOptions,
    policy: RestartPolicy,
    say: Callable[[str], None],
    on_ready: Callable[[LocalStack], None],
) -> None:
    async with local_stack(options, say) as stack:
        on_ready(stack)
        raise await stack.supervise(policy, say)


def up(
    target: Annotated[str, typer.Option(help="smollm2, a model folder, or a hub name")] = DEMO_MODEL,
    drafter: Annotated[
        str,
        typer.Option(
            help="auto (the shipped one, where it is for this target), none (proposals by lookup only), "
            "untrained, or a checkpoint folder"
        ),
    ] = AUTO,
    threads: Annotated[int, typer.Option(min=1, help="compute threads of the target")] = default_threads(),
    draft_threads: Annotated[int, typer.Option(min=1, help="compute threads of the drafter")] = 1,
    num_draft_tokens: Annotated[int | None, typer.Option(min=0, help="proposals a round asks for")] = None,
    verify_block_size: Annotated[
        int | None, typer.Option(min=1, help="rows the target verifies in a round, the anchor included")
    ] = None,
    source: Annotated[
        str | None, typer.Option(help="auto, drafter, lookup or lookup_then_drafter; lookup if untrained")
    ] = None,
    max_restarts: Annotated[
        int, typer.Option(min=0, help="how often in a row a service that ends or hangs is started again")
    ] = RestartPolicy.max_failures,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object when ready")] = False,
) -> None:
    """Runs target, drafter and coordinator as three processes until Ctrl-C. One that ends or hangs is
    started again on its address; one that fails again and again ends them all."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    drafter = named_drafter(drafter, resolve_model(target), console.print)
    if drafter == UNTRAINED:
        source = source or "lookup"
        console.print(f"drafter: {LABEL}; proposals come by {source} unless a request says otherwise")
    flags = {
        "--source": source,
        "--num-draft-tokens": num_draft_tokens,
        "--verify-block-size": verify_block_size,
    }
    options = stack_options(
        target,
        drafter,
        target_threads=threads,
        draft_threads=draft_threads,
        coordinator_flags=tuple(
            part for name, value in flags.items() if value is not None for part in (name, str(value))
        ),
    )

    def on_ready(stack: LocalStack) -> None:
        if as_json:
            print(json.dumps(describe(stack, target, drafter)), flush=True)
        else:
            console.print(f"metrics at http://{stack.coordinator.admin_address}/metrics")
            console.print(f"ready; try: dlite generate --address {stack.coordinator.address} 'Hello'")

    policy = RestartPolicy(max_failures=max_restarts)
    asyncio.run(until_signal(_serve(options, policy, console.print, on_ready)))
