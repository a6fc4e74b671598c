"""`dlite train`: a drafter for a target, from shards of its states. Light at import."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.demo_model import DEMO_MODEL

if TYPE_CHECKING:
    from draft_service.training.loop import SaveReport
    from draft_service.training.trainer import StepReport


def train(
    data: Annotated[list[Path], typer.Option(help="Folder of shards; repeat it for several.")],
    out: Annotated[Path, typer.Option(help="The run's folder; an interrupted run goes on.")],
    target: Annotated[str, typer.Option(help="smollm2, a model folder, or a hub name.")] = DEMO_MODEL,
    recipe: Annotated[Path | None, typer.Option(help="JSON file with the fields of the recipe.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="FIELD=VALUE of the recipe.")] = None,
    init_from: Annotated[Path | None, typer.Option(help="Checkpoint folder to start from.")] = None,
    save_every: Annotated[int, typer.Option(min=1, help="Steps between two saves.")] = 200,
    evaluation_anchors: Annotated[int, typer.Option(min=1, help="Held-out anchors of each.")] = 2048,
    stop_after: Annotated[int, typer.Option(min=0, help="Stop early; 0: at the recipe's end.")] = 0,
    store: Annotated[str, typer.Option(help="Of the drafter: float32, float16, bfloat16.")] = "float32",
    threads: Annotated[int, typer.Option(min=1, help="Compute threads.")] = 1,
    device: Annotated[str, typer.Option(help="Torch device.")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train a drafter. Start it with torchrun to share each batch among processes."""
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    from deploy.demo_model import resolve_model
    from draft_service.training.loop import DRAFTER, RunOptions
    from draft_service.training.recipe import read_recipe
    from draft_service.training.run import train as run

    options = RunOptions(
        data=tuple(data),
        target=resolve_model(target),
        out=out,
        init_from=init_from,
        save_every=save_every,
        evaluation_anchors=evaluation_anchors,
        stop_after=stop_after,
        store_dtype=store,
        threads=threads,
        device=device,
    )
    with TrainingBar() as bar:
        steps = run(read_recipe(recipe, set_ or ()), options, bar)
    summary = {"steps": steps, "drafter": str(out / DRAFTER)}
    typer.echo(json.dumps(summary) if as_json else f"{steps} steps; the drafter is in {out / DRAFTER}")


class TrainingBar:
    """A progress bar on stderr with loss and acceptance, and a line for each save."""

    def __init__(self, name: str = "") -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = Console(stderr=True, highlight=False)
        columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
        self._name = f"{name}  " if name else ""
        self._bar = Progress(*columns, console=self._console)
        self._task = self._bar.add_task(f"{self._name}starting", total=None)

    def __enter__(self) -> TrainingBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, step: int, steps: int) -> None:
        self._bar.update(self._task, total=steps, completed=step, description=self._name)

    def stepped(self, report: StepReport) -> None:
        text = f"{self._name}loss {report.loss:.3f}  proposal 1 agrees: {_row(report.agreement.rates()[:1])}"
        self._bar.update(self._task, completed=report.step + 1, description=text)

    def saved(self, report: SaveReport) -> None:
        self._console.print(
            f"{self._name}step {report.step}  loss {report.loss:.3f}  "
            f"{report.anchors_per_second:.0f} anchors/s  "
            f"argmax agrees: training {_row(report.training)}  held out {_row(report.held_out)}  "
            f"overlap {_row(report.held_out_overlap)}"
        )


def _row(values: list[float | None]) -> str:
    return " ".join("-" if value is None else f"{value:.3f}" for value in values)
