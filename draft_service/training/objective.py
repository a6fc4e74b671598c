"""What a run learns: how its net sees a group of anchors, and what the group's loss is.

n anchors, k proposals, V_d drafter vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from draft_service.model import DraftModel
from draft_service.training.data import AnchorBatch, TrainingData
from draft_service.training.forward import Frozen, Laws, autocast, drafter_log_law, laws
from draft_service.training.losses import (
    LossWeights,
    combine,
    cross_entropy,
    kl_divergence,
    l1_distance,
    position_weights,
)
from draft_service.training.recipe import Recipe
from draft_service.training.teacher import TeacherModel, teacher_log_law
from draft_service.training.two_stage import is_head_frozen, target_share

HEAD = "sequential_head."


@dataclass(frozen=True, eq=False)
class Group:
    """One forward pass.

    Attributes:
        found: the laws of net and target.
        valid: [n, k] bool, the text reaches the position.
        log_teacher: [n, k, V_d] where a teacher was asked.
        confidence: [n, k] logits where the net has a confidence head.
    """

    found: Laws
    valid: torch.Tensor
    log_teacher: torch.Tensor | None = None
    confidence: torch.Tensor | None = None


class Objective(Protocol):
    """What a trainer needs to know of a net."""

    @property
    def data(self) -> TrainingData: ...

    @property
    def device(self) -> torch.device: ...

    def group(self, model: nn.Module, pivots: torch.Tensor, k: int, step: int | None) -> Group:
        """The forward pass of anchors by their pivot rows [n]; `step` is None outside training."""
        ...

    def loss(self, group: Group, step: int) -> torch.Tensor:
        """Summed over the anchors."""
        ...

    def restrain(self, model: nn.Module, step: int) -> None:
        """Takes the gradient from what must not move at this step."""
        ...


class DrafterObjective:
    """A drafter against the target: the path without a teacher, and the base of the others."""

    def __init__(self, frozen: Frozen, data: TrainingData, recipe: Recipe) -> None:
        self.frozen = frozen
        self.data = data
        self.recipe = recipe
        self.device = frozen.embedding.device

    def group(self, model: nn.Module, pivots: torch.Tensor, k: int, step: int | None) -> Group:
        return self.pass_of(model, self.data.gather(pivots, k).to(self.device))

    def pass_of(self, model: nn.Module, batch: AnchorBatch) -> Group:
        """The forward pass of gathered anchors."""
        assert isinstance(model, DraftModel)
        with autocast(self.device, self.recipe.autocast):
            log_q = drafter_log_law(model, self.frozen.embedding, batch)
        return Group(laws(log_q, self.frozen, batch), batch.valid)

    def loss(self, group: Group, step: int) -> torch.Tensor:
        return group_loss(group.found, group.valid, self.recipe, step)

    def restrain(self, model: nn.Module, step: int) -> None:
        if self.recipe.head == "none":
            weight = model.get_parameter(HEAD + "state_hidden_mlp.weight")
            if weight.grad is not None:
                weight.grad[:, : weight.shape[0]] = 0.0


class TeacherObjective(DrafterObjective):
    """The teacher, with its window, against the target."""

    def group(self, model: nn.Module, pivots: torch.Tensor, k: int, step: int | None) -> Group:
        assert isinstance(model, TeacherModel)
        batch = self.data.gather(pivots, k).to(self.device)
        window = self.data.window(pivots, self.recipe.window).to(self.device)
        with autocast(self.device, self.recipe.autocast):
            log_q = teacher_log_law(model, self.frozen.embedding, batch, window)
        return Group(laws(log_q, self.frozen, batch), batch.valid)


class StudentObjective(DrafterObjective):
    """A student: first against its teacher, then against the target (two_stage.py)."""

    def __init__(self, frozen: Frozen, data: TrainingData, recipe: Recipe, teacher: TeacherModel) -> None:
        super().__init__(frozen, data, recipe)
        self._teacher = teacher.eval().requires_grad_(False)

    def group(self, model: nn.Module, pivots: torch.Tensor, k: int, step: int | None) -> Group:
        batch = self.data.gather(pivots, k).to(self.device)
        group = self.pass_of(model, batch)
        if step is None or target_share(step, self.recipe) == 1.0:
            return group
        window = self.data.window(pivots, self.recipe.window).to(self.device)
        with torch.no_grad(), autocast(self.device, self.recipe.autocast):
            log_teacher = teacher_log_law(self._teacher, self.frozen.embedding, batch, window)
        return Group(group.found, group.valid, log_teacher)

    def loss(self, group: Group, step: int) -> torch.Tensor:
        share = target_share(step, self.recipe)
        total = group.found.log_q.new_zeros(())
        if group.log_teacher is not None:
            apart = kl_divergence(group.log_teacher, group.found.log_q)  # [n, k]
            weighted = apart * position_weights(group.valid, self.recipe.position_decay)
            total = total + (1.0 - share) * weighted.sum()
        if share > 0.0:
            total = total + share * super().loss(group, step)
        return total

    def restrain(self, model: nn.Module, step: int) -> None:
        if is_head_frozen(step, self.recipe):
            for name, value in model.named_parameters():
                if name.startswith(HEAD):
                    value.grad = None


def group_loss(found: Laws, valid: torch.Tensor, recipe: Recipe, step: int) -> torch.Tensor:
    """The summed loss of one group; KL in place of L1 in the first part of the steps."""
    weights = LossWeights(recipe.greedy_weight, recipe.law_weight, recipe.position_decay)
    distance = kl_divergence if step < recipe.kl_fraction * recipe.steps else l1_distance
    return combine(
        cross_entropy(found.log_q, found.greedy), distance(found.log_p, found.log_q), valid, weights
    )
