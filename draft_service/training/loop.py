"""A run in a folder: begun or gone on with, watched, saved, and the checkpoint it leaves.

provenance.json     what the run is made of; written first
state.safetensors   where it stands (state.py)
metrics.jsonl       one line for each save
drafter/            the checkpoint that a draft service loads, as of the last save
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from draft_service.model import DraftModel
from draft_service.training.metrics import Agreement
from draft_service.training.objective import Objective
from draft_service.training.preparation import Prepared
from draft_service.training.ranks import Ranks
from draft_service.training.recipe import Recipe
from draft_service.training.schedule import generator
from draft_service.training.state import digest_of, restore_state, save_state
from draft_service.training.teacher import TeacherModel, save_teacher
from draft_service.training.trainer import StepReport, Trainer, evaluate
from draft_service.weights import save_drafter
from protos.shard_manifest import write_atomically

PROVENANCE = "provenance.json"
METRICS = "metrics.jsonl"
DRAFTER = "drafter"
TEACHER_CHECKPOINT = "checkpoint"
STORE_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_HELD_OUT_PURPOSE = 4


@dataclass(frozen=True)
class RunOptions:
    """Where a run lives and how it is computed; but for `init_from`, nothing here changes its weights.

    Attributes:
        data: folders of shards.
        target: the target's folder.
        out: the run's folder.
        init_from: a checkpoint folder to start from.
        save_every: steps between two saves; each also evaluates.
        evaluation_anchors: held-out anchors of an evaluation.
        stop_after: ends early after so many steps of this call; 0 goes on to the end.
        store_dtype: of the drafter's tensors on disk; it is served in float32 whatever this is.
    """

    data: tuple[Path, ...]
    target: Path
    out: Path
    init_from: Path | None = None
    save_every: int = 200
    evaluation_anchors: int = 2048
    stop_after: int = 0
    store_dtype: str = "float32"
    threads: int = 1
    device: str = "cpu"


@dataclass(frozen=True)
class SaveReport:
    """What is known at a save: mean loss since the last one, agreement by position."""

    step: int
    loss: float
    training: list[float | None]
    held_out: list[float | None]
    held_out_overlap: list[float | None]
    anchors_per_second: float


class Watch(Protocol):
    """Sees the run go on."""

    def begin(self, step: int, steps: int) -> None: ...

    def stepped(self, report: StepReport) -> None: ...

    def saved(self, report: SaveReport) -> None: ...


@dataclass(frozen=True, eq=False)
class Setting:
    """What the runs of one call share: their provenance, processes and watch."""

    document: dict[str, Any]
    ranks: Ranks
    watch: Watch


@dataclass(frozen=True, eq=False)
class Trained:
    """Where a call has come to.

    Attributes:
        steps: done, the teacher's among them.
        new_steps: done in this call.
        is_done: the recipe's last step is done.
        prepared: what was trained; its model is the one that went through the steps.
        model: the drafter as of the last step, on the device.
    """

    steps: int
    new_steps: int
    is_done: bool
    prepared: Prepared
    model: nn.Module


@dataclass(eq=False)
class Run:
    """One net in one folder."""

    prepared: Prepared
    objective: Objective
    recipe: Recipe
    options: RunOptions
    setting: Setting

    def __post_init__(self) -> None:
        self.trainer = Trainer(self.prepared.model, self.objective, self.recipe, self.setting.ranks)
        self._digest = digest_of(self.setting.document)

    def to_its_end(self) -> Trained:
        """Goes on where the folder stands, up to the recipe's last step or `stop_after`.

        Raises:
            ContractMismatch: the folder holds another run.
        """
        options, trainer, steps = self.options, self.trainer, self.recipe.steps
        options.out.mkdir(parents=True, exist_ok=True)
        restored = restore_state(options.out, trainer, self._digest)
        first = trainer.step
        if self.setting.ranks.is_first:
            text = json.dumps({**self.setting.document, "digest": self._digest}, indent=1) + "\n"
            write_atomically(options.out / PROVENANCE, text.encode())
            _truncate_metrics(options.out / METRICS, first if restored else 0)
        self.setting.watch.begin(first, steps)
        self._loop(steps if not options.stop_after else min(first + options.stop_after, steps))
        return Trained(
            trainer.step, trainer.step - first, trainer.step == steps, self.prepared, averaged(trainer)
        )

    def _loop(self, last: int) -> None:
        recipe, trainer = self.recipe, self.trainer
        counts, loss, since, began = Agreement.nothing(recipe.num_proposals), 0.0, 0, time.monotonic()
        while trainer.step < last:
            report = trainer.advance()
            self.setting.watch.stepped(report)
            counts, loss, since = counts.plus(report.agreement), loss + report.loss, since + 1
            if trainer.step % self.options.save_every == 0 or trainer.step == last:
                rate = since * recipe.batch_anchors / max(time.monotonic() - began, 1e-9)
                if self.setting.ranks.is_first:
                    self._save(loss / since, counts, rate)
                counts, loss, since = Agreement.nothing(recipe.num_proposals), 0.0, 0
                began = time.monotonic()

    def _save(self, loss: float, counts: Agreement, rate: float) -> None:
        """The state last: what it stands for is on disk already."""
        model = averaged(self.trainer)
        held_out = self._evaluate(model)
        report = SaveReport(
            self.trainer.step, loss, counts.rates(), held_out.rates(), held_out.overlaps(), rate
        )
        self._save_checkpoint(model.to(STORE_DTYPES[self.options.store_dtype]))
        with (self.options.out / METRICS).open("a") as lines:
            lines.write(json.dumps(report.__dict__) + "\n")
        save_state(self.options.out, self.trainer, self._digest)
        self.setting.watch.saved(report)

    def _save_checkpoint(self, model: nn.Module) -> None:
        """A net that is never served leaves no checkpoint but its state."""
        config, token_ids, out = self.prepared.config, self.prepared.token_ids, self.options.out
        if isinstance(model, TeacherModel):
            save_teacher(out / TEACHER_CHECKPOINT, config, model, token_ids)
        elif isinstance(model, DraftModel):
            save_drafter(out / DRAFTER, config, model, token_ids)

    def _evaluate(self, model: nn.Module) -> Agreement:
        recipe, data = self.recipe, self.prepared.data
        pivots = held_out_pivots(data.held_out_anchors, self.options.evaluation_anchors, recipe.seed)
        groups = pivots.split(recipe.group_anchors) if len(pivots) else ()
        return evaluate(model, self.objective, groups, recipe.num_proposals)


def held_out_pivots(anchors: torch.Tensor, count: int, seed: int) -> torch.Tensor:
    """The same sample of held-out anchors at every evaluation."""
    order = torch.randperm(len(anchors), generator=generator(seed, _HELD_OUT_PURPOSE, 0))
    return anchors[order[:count]]


@torch.no_grad()
def averaged(trainer: Trainer) -> nn.Module:
    """The net as of now: the average of the weights, or the weights where none is kept."""
    model = copy.deepcopy(trainer.model)
    if trainer.recipe.average_decay:
        for name, value in model.named_parameters():
            value.copy_(trainer.average[name])
    return model.eval().requires_grad_(False)


def _truncate_metrics(file: Path, step: int) -> None:
    """Drops lines of saves whose state was lost in a kill."""
    lines: Sequence[str] = file.read_text().splitlines() if file.exists() else ()
    kept = [line for line in lines if line.endswith("}") and json.loads(line)["step"] <= step]
    write_atomically(file, "".join(line + "\n" for line in kept).encode())
