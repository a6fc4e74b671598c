"""A training run in a folder: begun or gone on with, watched, saved, and the drafter it leaves.

provenance.json     what the run is made of; written first
state.safetensors   where it stands (state.py)
metrics.jsonl       one line for each save
drafter/            the checkpoint that a draft service loads, as of the last save
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from draft_service.model import DraftModel
from draft_service.training.metrics import Agreement
from draft_service.training.preparation import Prepared, prepare
from draft_service.training.provenance import provenance
from draft_service.training.ranks import Ranks, join_ranks
from draft_service.training.recipe import Recipe
from draft_service.training.schedule import generator
from draft_service.training.state import digest_of, restore_state, save_state
from draft_service.training.trainer import StepReport, Trainer, evaluate
from draft_service.weights import fingerprint, save_drafter
from protos.errors import InvalidRequest
from protos.shard_manifest import write_atomically

PROVENANCE = "provenance.json"
METRICS = "metrics.jsonl"
DRAFTER = "drafter"
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


def train(recipe: Recipe, options: RunOptions, watch: Watch) -> int:
    """Trains up to the recipe's last step; returns the steps done.

    Raises:
        InvalidRequest, NotFound, ContractMismatch: inputs do not fit together, or the folder holds
            another run.
    """
    if options.store_dtype not in STORE_DTYPES:
        raise InvalidRequest(f"{options.store_dtype!r} is none of {sorted(STORE_DTYPES)}", field="--store")
    torch.set_num_threads(options.threads)
    ranks = join_ranks(options.device)
    prepared = prepare(recipe, options.data, options.target, options.init_from, options.device)
    start = "" if options.init_from is None else fingerprint(options.init_from)
    document = provenance(recipe, prepared.data, start)
    digest = digest_of(document)
    options.out.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(prepared.model, prepared.frozen, prepared.data, recipe, ranks)
    restored = restore_state(options.out, trainer, digest)
    if ranks.is_first:
        text = json.dumps({**document, "digest": digest}, indent=1) + "\n"
        write_atomically(options.out / PROVENANCE, text.encode())
        _truncate_metrics(options.out / METRICS, trainer.step if restored else 0)
    watch.begin(trainer.step, recipe.steps)
    last = recipe.steps if not options.stop_after else min(trainer.step + options.stop_after, recipe.steps)
    _Loop(trainer, prepared, options, ranks, digest, watch).run(last)
    return trainer.step


@dataclass(eq=False)
class _Loop:
    trainer: Trainer
    prepared: Prepared
    options: RunOptions
    ranks: Ranks
    digest: str
    watch: Watch

    def run(self, last: int) -> None:
        recipe = self.trainer.recipe
        counts, loss, since, began = Agreement.nothing(recipe.num_proposals), 0.0, 0, time.monotonic()
        while self.trainer.step < last:
            report = self.trainer.advance()
            self.watch.stepped(report)
            counts, loss, since = counts.plus(report.agreement), loss + report.loss, since + 1
            if self.trainer.step % self.options.save_every == 0 or self.trainer.step == last:
                rate = since * recipe.batch_anchors / max(time.monotonic() - began, 1e-9)
                if self.ranks.is_first:
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
        stored = model.to(STORE_DTYPES[self.options.store_dtype])
        save_drafter(self.options.out / DRAFTER, self.prepared.config, stored, self.prepared.token_ids)
        with (self.options.out / METRICS).open("a") as lines:
            lines.write(json.dumps(report.__dict__) + "\n")
        save_state(self.options.out, self.trainer, self.digest)
        self.watch.saved(report)

    def _evaluate(self, model: DraftModel) -> Agreement:
        recipe, data = self.trainer.recipe, self.prepared.data
        pivots = held_out_pivots(data.held_out_anchors, self.options.evaluation_anchors, recipe.seed)
        groups = pivots.split(recipe.group_anchors) if len(pivots) else ()
        return evaluate(model, self.prepared.frozen, data, groups, recipe)


def held_out_pivots(anchors: torch.Tensor, count: int, seed: int) -> torch.Tensor:
    """The same sample of held-out anchors at every evaluation."""
    order = torch.randperm(len(anchors), generator=generator(seed, _HELD_OUT_PURPOSE, 0))
    return anchors[order[:count]]


def averaged(trainer: Trainer) -> DraftModel:
    """The drafter as of now: the average of the weights, or the weights where none is kept."""
    model = DraftModel(trainer.model.config)
    weights = trainer.average if trainer.recipe.average_decay else dict(trainer.model.named_parameters())
    model.load_state_dict({name: value.detach() for name, value in weights.items()})
    return model.to(next(iter(weights.values())).device).eval().requires_grad_(False)


def _truncate_metrics(file: Path, step: int) -> None:
    """Drops lines of saves whose state was lost in a kill."""
    lines: Sequence[str] = file.read_text().splitlines() if file.exists() else ()
    kept = [line for line in lines if line.endswith("}") and json.loads(line)["step"] <= step]
    write_atomically(file, "".join(line + "\n" for line in kept).encode())
