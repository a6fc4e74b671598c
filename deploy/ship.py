"""`dlite ship`: a trained drafter as a folder of the project, with its card. Light at import."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from deploy.demo_model import DEMO_MODEL
from deploy.shipped import DRAFTERS

_FOLDER = DRAFTERS / "smollm2-135m-instruct"
_RESULTS = Path("docs") / "results"

ship = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Turn a training run into a shipped drafter."
)


@ship.callback()
def _group() -> None:
    """A trained drafter as a folder of the project."""


@ship.command()
def drafter(
    run: Annotated[Path, typer.Option(help="Folder of `dlite train`.")],
    data: Annotated[list[Path], typer.Option(help="The run's folders of shards; repeat it for several.")],
    out: Annotated[Path, typer.Option(help="Folder to write; replaced as a whole.")] = _FOLDER,
    target: Annotated[str, typer.Option(help="smollm2, a model folder, or a hub name.")] = DEMO_MODEL,
    sources: Annotated[
        list[Path] | None, typer.Option(help="JSON files with the licences of more data sources.")
    ] = None,
    results: Annotated[Path, typer.Option(help="Folder of committed results.")] = _RESULTS,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write weights (int8 tables, float16), provenance.json and README.md. Looks for evaluation text in the
    data first, and refuses it."""
    from deploy.demo_model import resolve_model
    from deploy.shipping import ShipOptions, ship

    options = ShipOptions(run, tuple(data), resolve_model(target), out, results, tuple(sources or ()))
    document = ship(options)
    num_bytes = sum(one["num_bytes"] for one in document["files"].values())
    summary = {"drafter": str(out), "fingerprint": document["fingerprint"], "num_bytes": num_bytes}
    typer.echo(json.dumps(summary) if as_json else f"{out}: {num_bytes:,} bytes")


@ship.command()
def card(
    drafter: Annotated[Path, typer.Option(help="Shipped folder.")] = _FOLDER,
    results: Annotated[Path, typer.Option(help="Folder of committed results.")] = _RESULTS,
) -> None:
    """Write the folder's README.md anew, after results were saved."""
    from deploy.shipping import CARD, write_card

    write_card(drafter, results)
    typer.echo(str(drafter / CARD))


@ship.command()
def curve(
    run: Annotated[list[Path], typer.Option(help="Folder of `dlite train`; several that went on in turn.")],
    save: Annotated[Path, typer.Option(help="Folder for learning-curve.json and .png.")] = _RESULTS,
) -> None:
    """Draw the learning curve of runs, and write it as JSON."""
    from deploy.learning_curve import curve, draw_curve, read_run

    found = curve([read_run(folder) for folder in run])
    save.mkdir(parents=True, exist_ok=True)
    (save / "learning-curve.json").write_text(json.dumps(found, indent=1) + "\n")
    draw_curve(found, save / "learning-curve.png")
    typer.echo(str(save / "learning-curve.png"))
