"""`dlite eval`: how good a drafter is, before it is served. Light at import."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from deploy.demo_model import DEMO_MODEL


def eval(
    drafter: Annotated[Path, typer.Option(help="Checkpoint folder.")],
    target: Annotated[str, typer.Option(help="smollm2, a model folder, or a hub name.")] = DEMO_MODEL,
    prompts: Annotated[list[Path] | None, typer.Option(help="JSONL with turns, or plain text lines.")] = None,
    agent: Annotated[int, typer.Option(min=0, help="Made-up prompts of agent work, kinds in turn.")] = 0,
    num_prompts: Annotated[int, typer.Option(min=1, help="Of each file.")] = 20,
    max_tokens: Annotated[int, typer.Option(min=2, help="Of each answer.")] = 128,
    temperature: Annotated[list[float] | None, typer.Option(help="0 is greedy, else coupled.")] = None,
    num_draft_tokens: Annotated[int, typer.Option(min=0, help="Proposals a round; 0: all.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Of sampling keys and made-up prompts.")] = 1_000_003,
    work: Annotated[Path | None, typer.Option(help="Keeps the target's texts for the next drafter.")] = None,
    png: Annotated[Path | None, typer.Option(help="Draws acceptance by set and position.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Compute threads.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Walk the target's answers to held-out prompts with a drafter, as serving does."""
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    import tempfile

    from deploy.demo_model import resolve_model
    from deploy.evaluation import EvaluationOptions, as_table, draw, report

    options = EvaluationOptions(
        drafter=drafter,
        target=resolve_model(target),
        prompts=tuple(prompts or ()),
        num_agent_prompts=agent,
        num_prompts=num_prompts,
        max_tokens=max_tokens,
        temperatures=tuple(temperature or (0.0,)),
        num_draft_tokens=num_draft_tokens,
        seed=seed,
        threads=threads,
    )
    with tempfile.TemporaryDirectory(prefix="dlite-eval-") as scratch:
        found = report(options, work or Path(scratch))
    if png is not None:
        draw(found, png)
    if as_json:
        typer.echo(json.dumps(found))
    else:
        from rich.console import Console

        Console().print(as_table(found))
