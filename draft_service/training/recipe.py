"""What a training run does: every choice that changes its weights, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from protos.errors import InvalidRequest, NotFound

BlockInit = Literal["random", "last_layers", "spread_layers"]
HeadInit = Literal["random", "low_rank"]
TrainingPath = Literal["teacher_free", "two_stage"]
Net = Literal["dlite", "dflash", "dspark"]
# Fields that runs begun before them lack: left out of a document where they change nothing.
_OPTIONAL = (
    "path",
    "window",
    "teacher_fraction",
    "distil_fraction",
    "transition_fraction",
    "net",
    "head",
    "anchors_per_text",
    "history_rows",
)


class Recipe(BaseModel):
    """One run. A batch is `batch_anchors` anchors, in groups that share their block size k.

    Attributes:
        num_layers, intermediate_size: the backbone; 0 takes the target's intermediate size.
        rank: R of the sequential head; 0 means D / 8.
        block_size: B = K + 1.
        draft_vocab_size: V_d; 0 keeps the target's vocabulary.
        variable_block: trained with k drawn for each group; the drafter then computes 1 + k rows.
        block_bias: with a variable block, k has probability proportional to k^-block_bias.
        target_layer_ids: layers of the shards that the drafter reads; empty takes all of them.
        mask_token_id: whose embedding the mask rows get.
        block_init: blocks from a seed, or copied from the target's last or evenly spread layers.
        head_init: head from a seed, or W_o, E_R fitted to the target's LM head and embedding.
        steps, batch_anchors, group_anchors: the budget, and what one forward pass takes.
        learning_rate, head_learning_rate: of the backbone, and of the sequential head.
        warmup_fraction, decay_fraction: of the steps, linear rise at the start and fall at the end.
        kl_fraction: of the steps that begin with KL in place of L1, which is flat from a cold start.
        greedy_weight, law_weight: of the cross entropy on the target's argmax, and of KL or L1.
        position_decay: weight of proposal j is exp(-(j - 1) / position_decay).
        average_decay: of the running mean of the weights that is saved as the drafter; 0 saves the weights.
        held_out_fraction: of the prompts, chosen by their hash, kept for evaluation.
        path: teacher_free, or two_stage: a teacher with a window of history first, then its student.
        window: W, the teacher sees the tokens a-W..a-2 before the pivot.
        teacher_fraction: of the steps, spent on the teacher.
        distil_fraction, transition_fraction: of the student's steps: towards the teacher, with the
            teacher's head frozen; then the cosine change to the target. The rest is stage 2.
        net: dlite, or a history-keeping net to compare with, which is never served.
        head: recurrent, or none: proposals do not see each other. Such a head is a recurrent one whose
            state has no weight.
        anchors_per_text: anchors of a text that follow each other in the order of the data.
        history_rows: the most rows before an anchor that a history-keeping net is trained with.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    num_layers: int = Field(2, ge=1)
    intermediate_size: int = Field(0, ge=0)
    rank: int = Field(0, ge=0)
    block_size: int = Field(8, ge=2)
    draft_vocab_size: int = Field(0, ge=0)
    variable_block: bool = True
    block_bias: float = Field(1.0, ge=0.0)
    target_layer_ids: tuple[int, ...] = ()
    mask_token_id: int = Field(16, ge=0)
    block_init: BlockInit = "last_layers"
    head_init: HeadInit = "low_rank"

    steps: int = Field(2000, ge=1)
    batch_anchors: int = Field(128, ge=1)
    group_anchors: int = Field(64, ge=1)
    learning_rate: float = Field(5e-4, gt=0.0)
    head_learning_rate: float = Field(1e-3, gt=0.0)
    weight_decay: float = Field(0.01, ge=0.0)
    betas: tuple[float, float] = (0.9, 0.95)
    clip_norm: float = Field(1.0, gt=0.0)
    warmup_fraction: float = Field(0.04, ge=0.0, le=1.0)
    decay_fraction: float = Field(0.5, ge=0.0, le=1.0)
    kl_fraction: float = Field(0.15, ge=0.0, le=1.0)
    greedy_weight: float = Field(0.1, ge=0.0)
    law_weight: float = Field(1.0, ge=0.0)
    position_decay: float = Field(4.0, gt=0.0)
    average_decay: float = Field(0.0, ge=0.0, lt=1.0)
    autocast: Literal["none", "bfloat16"] = "none"
    held_out_fraction: float = Field(0.05, ge=0.0, lt=1.0)
    seed: int = Field(0, ge=0)

    path: TrainingPath = "teacher_free"
    window: int = Field(16, ge=2)
    teacher_fraction: float = Field(0.3, gt=0.0, lt=1.0)
    distil_fraction: float = Field(0.4, ge=0.0, le=1.0)
    transition_fraction: float = Field(0.2, ge=0.0, le=1.0)
    net: Net = "dlite"
    head: Literal["recurrent", "none"] = "recurrent"
    anchors_per_text: int = Field(1, ge=1)
    history_rows: int = Field(2048, ge=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.batch_anchors % self.group_anchors:
            raise ValueError(
                f"batch_anchors {self.batch_anchors} is no multiple of group_anchors {self.group_anchors}"
            )
        if self.path == "two_stage":
            if self.net != "dlite" or self.head != "recurrent":
                raise ValueError("path two_stage is for net dlite with its recurrent head")
            if self.distil_fraction + self.transition_fraction > 1.0:
                raise ValueError("distil_fraction and transition_fraction are more than all steps")
            if self.steps < 2:
                raise ValueError("path two_stage needs a step for the teacher and one for the student")
        return self

    @model_serializer(mode="wrap")
    def _without_unused_fields(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = handler(self)
        unused = [name for name in _OPTIONAL if getattr(self, name) == type(self).model_fields[name].default]
        return {name: value for name, value in values.items() if name not in unused}

    @property
    def num_groups(self) -> int:
        """Forward passes of one step."""
        return self.batch_anchors // self.group_anchors

    @property
    def num_proposals(self) -> int:
        """K."""
        return self.block_size - 1


def read_recipe(file: Path | None, changes: Sequence[str] = ()) -> Recipe:
    """A recipe from a JSON file (or the defaults) with "field=value" changes.

    Raises:
        NotFound: no such file.
        InvalidRequest: an unknown field or a bad value, naming it.
    """
    values: dict[str, Any] = {}
    if file is not None:
        try:
            values = json.loads(file.read_text())
        except OSError as error:
            raise NotFound(f"cannot read {file}: {error}", field="--recipe") from error
        except ValueError as error:
            raise InvalidRequest(f"{file} is no JSON: {error}", field="--recipe") from error
        if not isinstance(values, dict):
            raise InvalidRequest(f"{file} is no JSON object", field="--recipe")
    for change in changes:
        name, separator, text = change.partition("=")
        if not separator:
            raise InvalidRequest(f"{change!r}: expected FIELD=VALUE", field="--set")
        try:
            values[name] = json.loads(text)
        except ValueError:
            values[name] = text
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "recipe"
        raise InvalidRequest(f"{field}: {first['msg']}", field=field) from error
