"""Tiny targets whose text can be learned, and what training makes of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from deploy.questions import Asking, PromptText, as_questions
from draft_service.training.loop import RunOptions, SaveReport
from draft_service.training.recipe import Recipe
from draft_service.training.trainer import StepReport
from protos.shards import CapturedSequence, open_shards
from target_service.answering_job import AnsweringOptions, answer_all
from tests.fakes import tiny_target

VOCAB = 61
NUM_TAPPED = 3
# How peaked the law is, and how little the layers add to what the last token says of the next one.
_GAIN = 3.0
_LAYER_SCALE = 0.06


def learnable_target(folder: Path) -> Path:
    """A Llama folder whose next token mostly follows from the last one, by a fixed permutation."""
    model = tiny_target("llama", dtype=torch.float32, vocab=VOCAB)
    order = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(3))
    rows = model.model.embed_tokens.weight
    model.lm_head.weight.copy_(_GAIN * rows[order.argsort()])
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.mul_(_LAYER_SCALE)
        layer.mlp.down_proj.weight.mul_(_LAYER_SCALE)
    model.save_pretrained(folder)
    return folder


def prompts(count: int, seed: int) -> list[PromptText]:
    """Random prompts of 3 to 8 tokens."""
    generator = torch.Generator().manual_seed(seed)

    def ids() -> tuple[int, ...]:
        length = int(torch.randint(3, 9, (1,), generator=generator))
        return tuple(torch.randint(0, VOCAB, (length,), generator=generator).tolist())

    return [PromptText((), f"seed-{seed}", ids()) for _ in range(count)]


def unwatched(items: Iterable[CapturedSequence], _total: int, _done: int) -> Iterator[CapturedSequence]:
    return iter(items)


def answered(target: Path, out: Path, texts: Sequence[PromptText], asking: Asking) -> Path:
    """A folder of shards with the target's answers, features in float32."""
    options = AnsweringOptions(str(target), NUM_TAPPED, "float32", concurrency=16)
    answer_all(as_questions(target, texts, asking), out, options, unwatched)
    return out


def sequences_of(folder: Path) -> list[CapturedSequence]:
    _, shards = open_shards(folder)
    return [shard.sequence(index) for shard in shards for index in range(len(shard))]


def small_recipe(**changes: object) -> Recipe:
    """A drafter of a few thousand weights, trained in seconds; keyword arguments replace fields."""
    values: dict[str, object] = {
        "num_layers": 1,
        "rank": 16,
        "block_size": 5,
        "steps": 20,
        "batch_anchors": 32,
        "group_anchors": 16,
        "learning_rate": 3e-3,
        "head_learning_rate": 5e-3,
        "average_decay": 0.9,
        "held_out_fraction": 0.2,
    }
    return Recipe.model_validate({**values, **changes})


@dataclass(eq=False)
class Seen:
    """A watch that remembers, and can end the run as a kill would."""

    die_at: int = -1
    steps: list[StepReport] = field(default_factory=list)
    saves: list[SaveReport] = field(default_factory=list)

    def begin(self, step: int, steps: int) -> None:
        """Nothing to show."""

    def stepped(self, report: StepReport) -> None:
        self.steps.append(report)
        if report.step == self.die_at:
            raise Killed

    def saved(self, report: SaveReport) -> None:
        self.saves.append(report)


class Killed(BaseException):
    """Stands for a kill: nothing of the run gets to clean up."""


def run_options(data: Path, target: Path, out: Path, **changes: object) -> RunOptions:
    values: dict[str, object] = {"save_every": 7, "evaluation_anchors": 64}
    return RunOptions((data,), target, out, **{**values, **changes})  # type: ignore[arg-type]
