"""What `dlite train` noted in metrics.jsonl: how long it took, and the curve as JSON and PNG."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from protos.errors import InvalidRequest, NotFound

_FIELDS = ("step", "loss", "training", "held_out", "held_out_overlap", "anchors_per_second")


@dataclass(frozen=True)
class TrainingRun:
    """A run's folder, read.

    Attributes:
        name: of the folder.
        provenance: provenance.json.
        saves: lines of metrics.jsonl, one a save.
    """

    name: str
    provenance: Mapping[str, Any]
    saves: Sequence[Mapping[str, Any]]

    @property
    def batch_anchors(self) -> int:
        return int(self.provenance["recipe"]["batch_anchors"])

    @property
    def steps(self) -> int:
        return int(self.saves[-1]["step"])

    @property
    def num_anchors(self) -> int:
        """Anchors trained on, repetitions counted."""
        return self.steps * self.batch_anchors

    @property
    def seconds(self) -> float:
        """Spent in steps; evaluations and saves are not counted."""
        before = [0, *(int(save["step"]) for save in self.saves)]
        steps = [later - earlier for earlier, later in pairwise(before)]
        rates = [float(save["anchors_per_second"]) for save in self.saves]
        return sum(n * self.batch_anchors / rate for n, rate in zip(steps, rates, strict=True))


def read_run(folder: Path) -> TrainingRun:
    """Raises:
    NotFound: no such run, or one that has not saved yet.
    InvalidRequest: its notes are damaged.
    """
    try:
        provenance = json.loads((folder / "provenance.json").read_text())
        lines = (folder / "metrics.jsonl").read_text().splitlines()
    except OSError as error:
        raise NotFound(f"{folder} is no folder of `dlite train`: {error}", field="--run") from error
    except ValueError as error:
        raise InvalidRequest(f"{folder}: provenance.json is damaged: {error}", field="--run") from error
    try:
        saves = [json.loads(line) for line in lines if line.strip()]
        saves = [{name: save[name] for name in _FIELDS} for save in saves]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(f"{folder}: metrics.jsonl is damaged: {error!r}", field="--run") from error
    if not saves:
        raise NotFound(f"{folder} has not saved yet", field="--run")
    return TrainingRun(folder.name, provenance, saves)


def curve(runs: Sequence[TrainingRun]) -> dict[str, Any]:
    """Runs that went on from one another, as JSON; anchors and hours are counted from the first on."""
    points, anchors, seconds = [], 0, 0.0
    for run in runs:
        for index, save in enumerate(run.saves):
            part = TrainingRun(run.name, run.provenance, run.saves[: index + 1])
            reached = {"anchors": anchors + part.num_anchors, "hours": (seconds + part.seconds) / 3600}
            points.append({"run": run.name, **reached, **save})
        anchors, seconds = anchors + run.num_anchors, seconds + run.seconds
    recipes = {run.name: dict(run.provenance["recipe"]) for run in runs}
    return {"name": "learning-curve", "recipes": recipes, "points": points}


def draw_curve(found: Mapping[str, Any], file: Path) -> None:
    """Loss, and agreement with the target's argmax on held-out prompts at each position, over anchors."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    points = found["points"]
    anchors = [point["anchors"] / 1e3 for point in points]
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    left.plot(anchors, [point["loss"] for point in points], ".-")
    left.set(xlabel="anchors trained on (thousands)", ylabel="loss since the last save", title="Loss")
    for position in range(len(points[-1]["held_out"])):
        shares = [point["held_out"][position] for point in points]
        known = [(x, y) for x, y in zip(anchors, shares, strict=True) if y is not None]
        right.plot([x for x, _ in known], [y for _, y in known], ".-", label=f"{position + 1}")
    first = [point["training"][0] for point in points]
    right.plot(anchors, first, ":", color="black", label="1, training")
    right.set(xlabel="anchors trained on (thousands)", title="Argmax is the target's, held-out prompts")
    right.set(ylim=(0, 1))
    right.legend(title="proposal", fontsize=7)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.savefig(file, dpi=120)
