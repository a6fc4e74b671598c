"""`dlite eval`: how good a drafter is, before it is served. Light at import."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from deploy.demo_model import DEMO_MODEL

CONTEXTS = (512, 2048, 6144)
# Of made-up prompts for measuring; training uses other seeds, and other words as well.
SEED = 1_000_003


def eval(
    drafter: Annotated[str, typer.Option(help="Checkpoint folder; auto: the shipped one.")] = "auto",
    target: Annotated[str, typer.Option(help="smollm2, a model folder, or a hub name.")] = DEMO_MODEL,
    prompts: Annotated[list[Path] | None, typer.Option(help="JSONL with turns, or plain text lines.")] = None,
    num_prompts: Annotated[int, typer.Option(min=1, help="Of each file.")] = 20,
    agent: Annotated[int, typer.Option(min=0, help="Held-out prompts of agent work, kinds in turn.")] = 0,
    traces: Annotated[int, typer.Option(min=0, help="Held-out agent traces of each context.")] = 0,
    context: Annotated[list[int] | None, typer.Option(min=1, help="Tokens of a trace.")] = None,
    max_tokens: Annotated[int, typer.Option(min=2, help="Of each answer.")] = 128,
    temperature: Annotated[list[float] | None, typer.Option(help="0 is greedy, else coupled.")] = None,
    num_draft_tokens: Annotated[int, typer.Option(min=0, help="Proposals a round; 0: all.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Of sampling keys and made-up prompts.")] = SEED,
    training_data: Annotated[
        list[Path] | None, typer.Option(help="Shards that must share no 13 words with the prompts.")
    ] = None,
    work: Annotated[
        Path | None, typer.Option(help="Where answers are kept; default: the user's cache.")
    ] = None,
    png: Annotated[Path | None, typer.Option(help="Draws acceptance by set and position.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Compute threads.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Walk the target's answers to held-out prompts with a drafter, as serving does. The answers are kept,
    so the next drafter is measured on the same texts without the target."""
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    from deploy.demo_model import resolve_model
    from deploy.evaluation import EvaluationOptions, report
    from deploy.evaluation_report import as_table, draw
    from deploy.evaluation_texts import TextOptions
    from deploy.model_cache import cache_root
    from deploy.shipped import trained_drafter

    model = resolve_model(target)
    texts = TextOptions(
        target=model,
        prompts=tuple(prompts or ()),
        num_prompts=num_prompts,
        num_agent_prompts=agent,
        num_traces=traces,
        contexts=tuple(context or CONTEXTS),
        max_tokens=max_tokens,
        temperatures=tuple(temperature or (0.0,)),
        seed=seed,
    )
    options = EvaluationOptions(
        drafter=trained_drafter(drafter, model),
        texts=texts,
        work=work or cache_root() / "evaluation",
        num_draft_tokens=num_draft_tokens,
        threads=threads,
        training_data=tuple(training_data or ()),
    )
    found = report(options)
    if png is not None:
        draw(found, png)
    if as_json:
        typer.echo(json.dumps(found))
    else:
        from rich.console import Console

        Console().print(as_table(found))
