"""`dlite deploy`: clusters from one YAML file. Light at import."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

deploy = typer.Typer(add_completion=False, help="Many replicas from one YAML file.")


@deploy.callback()
def group() -> None:
    """A group, also with one command in it."""


@deploy.command()
def plan(
    file: Annotated[Path, typer.Argument(help="the YAML file, see deploy/cluster/spec.py")],
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Shows what would run where, and starts nothing."""
    from deploy.cluster.plan import plan as make_plan
    from deploy.cluster.spec import read_spec

    found = make_plan(read_spec(file))
    if as_json:
        print(json.dumps({**asdict(found), "totals": found.totals()}))
        return
    for actor in found.actors:
        resources = " ".join(f"{name}={amount:g}" for name, amount in actor.resources.items())
        typer.echo(f"{actor.name}  [{resources}]  dlite {' '.join(actor.command)}")
    totals = " ".join(f"{name}={amount:g}" for name, amount in found.totals().items())
    typer.echo(f"{len(found.actors)} actors, {found.placement}, together {totals}", err=True)
