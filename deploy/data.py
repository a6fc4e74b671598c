"""`dlite data`: training data for a drafter. Light at import."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from deploy.demo_model import DEMO_MODEL

_Item = TypeVar("_Item")

_FAST = "Matrix products in bfloat16: faster on CPUs that have them, states within a few %."

data = typer.Typer(add_completion=False, no_args_is_help=True, help="Make and check training data.")


@data.callback()
def _group() -> None:
    """Training data for a drafter."""


@data.command()
def export(
    sequences: Annotated[Path, typer.Option(help="JSONL: prompt_len, ids, temperature, source.")],
    out: Annotated[Path, typer.Option(help="Folder of shards; an interrupted export goes on.")],
    target: Annotated[str, typer.Option(help="smollm2, a model folder, or a hub name.")] = DEMO_MODEL,
    num_tapped_layers: Annotated[int, typer.Option(min=2, help="m; must equal the drafter's.")] = 8,
    history: Annotated[int, typer.Option(min=0, help="Prompt rows kept before each response.")] = 0,
    feature_dtype: Annotated[str, typer.Option(help="float16, float32 or float64.")] = "float16",
    dtype: Annotated[str, typer.Option(help="The target's, as in `dlite target`.")] = "auto",
    fast: Annotated[bool, typer.Option(help=_FAST)] = False,
    step_rows: Annotated[int, typer.Option(min=1, help="Rows of one forward pass.")] = 512,
    threads: Annotated[int, typer.Option(min=1, help="Compute threads.")] = 1,
    device: Annotated[str, typer.Option(help="Torch device.")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run token sequences through the target and store its states, for `dlite train`."""
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    from deploy.demo_model import resolve_model
    from target_service.export_job import ExportOptions, export_file

    options = ExportOptions(
        target=str(resolve_model(target)),
        num_tapped_layers=num_tapped_layers,
        history=history,
        feature_dtype=feature_dtype,
        dtype=dtype,
        matrices="bfloat16" if fast else "",
        step_rows=step_rows,
        threads=threads,
        device=device,
    )
    manifest = export_file(sequences, out, options, shown)
    summary = {"sequences": manifest.num_sequences, "rows": manifest.num_rows, "shards": len(manifest.shards)}
    typer.echo(json.dumps(summary) if as_json else f"{out}: {summary}")


@data.command()
def generate(
    out: Annotated[Path, typer.Option(help="Folder of shards; an interrupted generation goes on.")],
    prompts: Annotated[list[Path] | None, typer.Option(help="JSONL with turns, or plain text lines.")] = None,
    synthetic: Annotated[int, typer.Option(min=0, help="Prompts of agent work to make up.")] = 0,
    traces: Annotated[
        int, typer.Option(min=0, help="Multi-turn tool loops to make up, of each context.")
    ] = 0,
    context: Annotated[
        list[int] | None, typer.Option(min=0, help="Tokens of a trace; 0: a few turns.")
    ] = None,
    target: Annotated[str, typer.Option(help="smollm2, a model folder, or a hub name.")] = DEMO_MODEL,
    temperature: Annotated[list[float] | None, typer.Option(help="One of these each; 0 is greedy.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 160,
    max_prompt: Annotated[int, typer.Option(min=1, help="Longer prompts are left out.")] = 1024,
    limit: Annotated[int, typer.Option(min=0, help="Prompts of each file; 0: all.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Of sampling keys and made-up prompts.")] = 0,
    num_tapped_layers: Annotated[int, typer.Option(min=2, help="m; must equal the drafter's.")] = 8,
    feature_dtype: Annotated[str, typer.Option(help="float16, float32 or float64.")] = "float16",
    dtype: Annotated[str, typer.Option(help="The target's, as in `dlite target`.")] = "auto",
    fast: Annotated[bool, typer.Option(help=_FAST)] = False,
    concurrency: Annotated[int, typer.Option(min=1, help="Answers under way at a time.")] = 32,
    threads: Annotated[int, typer.Option(min=1, help="Compute threads.")] = 1,
    device: Annotated[str, typer.Option(help="Torch device.")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Let the target answer prompts through the engine, and store its states, for `dlite train`."""
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    from deploy.demo_model import resolve_model
    from deploy.questions import Asking, MadeUp, questions
    from target_service.answering_job import AnsweringOptions, answer_all

    folder = resolve_model(target)
    asking = Asking(tuple(temperature or (0.0,)), max_tokens, max_prompt, limit, seed)
    options = AnsweringOptions(
        target=str(folder),
        num_tapped_layers=num_tapped_layers,
        feature_dtype=feature_dtype,
        dtype=dtype,
        matrices="bfloat16" if fast else "",
        concurrency=concurrency,
        threads=threads,
        device=device,
    )
    made_up = MadeUp(synthetic, traces, tuple(context or (0,)))
    asked = questions(folder, prompts or (), made_up, asking)
    manifest = answer_all(asked, out, options, shown)
    summary = {"sequences": manifest.num_sequences, "rows": manifest.num_rows, "shards": len(manifest.shards)}
    typer.echo(json.dumps(summary) if as_json else f"{out}: {summary}")


@data.command()
def check(
    data: Annotated[list[Path], typer.Option(help="Folder of shards; repeat it for several.")],
    against: Annotated[
        list[Path] | None, typer.Option(help="Prompt files or .bin hashes; default: the project's sets.")
    ] = None,
    target: Annotated[str, typer.Option(help="Whose tokenizer the shards have.")] = DEMO_MODEL,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Look for text of evaluation sets in training data: runs of 13 words. Exits 1 when there is any."""
    from deploy.data_check import check as look
    from deploy.demo_model import resolve_model

    hits = look(data, resolve_model(target), against or ())
    if as_json:
        typer.echo(json.dumps({"hits": [[hit.source, hit.run] for hit in hits]}))
    else:
        typer.echo("\n".join(f"{hit.source}: {hit.run}" for hit in hits) or "no shared run of 13 words")
    if hits:
        raise typer.Exit(1)


def shown(items: Iterable[_Item], total: int, done: int) -> Iterator[_Item]:
    """Passes items through under a progress bar on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("sequences", total=total, completed=done)
        for item in items:
            yield item
            bar.advance(task)
