"""`dlite soak`: two replicas of each service under agent traffic, with cancels and kills, for minutes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from deploy.demo_model import DEMO_MODEL, resolve_model
from deploy.shipped import AUTO, named_drafter
from protos.errors import DliteError


def soak(
    minutes: Annotated[float, typer.Option(min=0.1, help="how long; memory is judged from ten on")] = 20.0,
    target: Annotated[str, typer.Option(help="smollm2, a model folder, or a hub name")] = DEMO_MODEL,
    drafter: Annotated[str, typer.Option(help="auto, untrained, or a checkpoint folder")] = AUTO,
    sessions: Annotated[int, typer.Option(min=1, help="agents at a time")] = 4,
    kill_every: Annotated[float, typer.Option(min=1.0, help="seconds between two faults, on average")] = 45.0,
    seed: Annotated[int, typer.Option(help="of traffic and faults")] = 0,
    save: Annotated[Path | None, typer.Option(help="folder to write soak.json and soak.png into")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Two targets, two drafters and two coordinators; the second of each is killed or stopped at random.
    Fails when a request fails or hangs, when memory grows, or when pages or streams are left over."""
    from deploy.bench.harness import commit, machine
    from deploy.soak_figure import write
    from deploy.soak_run import SoakOptions, run_soak
    from deploy.up import stack_options

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    name = named_drafter(drafter, resolve_model(target), console.print)
    services = stack_options(target, name, target_threads=1, draft_threads=1, coordinator_flags=())
    options = SoakOptions(services, minutes, sessions, kill_every, seed)
    # Before it begins: the tree may be another one at the end.
    about = {"target": Path(target).name, "machine": machine(), "commit": commit()}
    result = asyncio.run(run_soak(options, console.print)) | about
    if save is not None:
        save.mkdir(parents=True, exist_ok=True)
        (save / "soak.json").write_text(json.dumps(result) + "\n")
        (save / "soak.png").write_bytes(write(result))
    print(json.dumps(result) if as_json else summary(result))
    if not result["pass"]:
        raise DliteError("the soak found something: see its record")


def summary(result: dict[str, Any]) -> str:
    """A few lines for people."""
    requests = ", ".join(f"{count} {status}" for status, count in sorted(result["requests"].items()))
    grown = ", ".join(f"{name} {share:+.1%}" for name, share in result["memory_growth"].items())
    return "\n".join(
        [
            f"{result['minutes']:g} minutes, {len(result['faults'])} faults: {requests}",
            f"longest silence of a text {result['longest_silence_seconds']:g} s",
            f"pages without a request: {result['surplus_pages']}; texts left: {result['left_running']}",
            f"memory over the last half: {grown}",
            "all is as it should be" if result["pass"] else "NOT as it should be",
        ]
    )
