"""`dlite ablate`: what each choice of the recipe is worth, at one budget. Light at import."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deploy.demo_model import DEMO_MODEL

if TYPE_CHECKING:
    from deploy.ablation_run import Bench


def ablate(
    groups: Annotated[list[str], typer.Argument(help="Ablations by name, or all.")],
    data: Annotated[list[Path], typer.Option(help="Folder of shards; repeat it for several.")],
    out: Annotated[Path, typer.Option(help="Keeps the arms' runs; an interrupted call goes on.")],
    target: Annotated[str, typer.Option(help="smollm2, a model folder, or a hub name.")] = DEMO_MODEL,
    anchors: Annotated[int, typer.Option(min=2, help="The budget of every arm.")] = 20_000,
    recipe: Annotated[Path | None, typer.Option(help="JSON file: fields of the common recipe.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="FIELD=VALUE of the common recipe.")] = None,
    arm: Annotated[list[str] | None, typer.Option(help="Only these arms, to share them out.")] = None,
    context_data: Annotated[list[Path] | None, typer.Option(help="Shards to walk, not to train on.")] = None,
    context_texts: Annotated[int, typer.Option(min=1, help="Texts of each such folder.")] = 10,
    whole_history: Annotated[bool, typer.Option(help="Export all prompt rows of --data first.")] = False,
    costs_again: Annotated[bool, typer.Option(help="Measure the cost of drafting anew.")] = False,
    results: Annotated[Path | None, typer.Option(help="Folder for ablations.json, .md and .png.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Compute threads.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train and walk the arms of ablations: R, depth, m, K, draft-vocab, variable-block, two-stage, head,
    one-layer, baselines, or all of them. Arms that are done are not done again."""
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    from deploy.ablation_job import Asked, chosen, open_bench, run

    asked = Asked(
        data=tuple(data),
        out=out,
        target=target,
        anchors=anchors,
        recipe=recipe,
        changes=tuple(set_ or ()),
        context_data=tuple(context_data or ()),
        num_context_texts=context_texts,
        whole_history=whole_history,
        costs_again=costs_again,
        threads=threads,
    )
    names = chosen(groups)
    bench: Bench = open_bench(asked)
    result, text = run(names, bench, results or out, arm or ())
    typer.echo(json.dumps(_short(result)) if as_json else text)


def _short(result: dict[str, Any]) -> dict[str, Any]:
    """Without what the file holds besides."""
    if not result:
        return {}
    budgets = [
        {"anchors": one["anchors"], "tau": {name: arm["sets"][0]["tau"] for name, arm in one["arms"].items()}}
        for one in result["budgets"]
    ]
    return {"pass": result["pass"], "problems": result["problems"], "budgets": budgets}
