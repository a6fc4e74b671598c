"""One training step after another. The weights after step s are a function of recipe and data alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from draft_service.training.metrics import Agreement, agreement
from draft_service.training.objective import Group, Objective
from draft_service.training.ranks import Ranks
from draft_service.training.recipe import Recipe
from draft_service.training.schedule import AnchorOrder, block_size_of, lr_factor

# Steps between two updates of the average: an update reads and writes every weight.
_AVERAGE_EVERY = 8
# What learns at the head's rate: the parts after a net's backbone.
_HEADS = ("sequential_head.", "markov.", "confidence.")


@dataclass(frozen=True, eq=False)
class StepReport:
    """Of one step: loss per anchor, norm of the gradient before clipping, and agreement."""

    step: int
    loss: float
    gradient_norm: float
    agreement: Agreement


class Trainer:
    """Owns the model, its running average and the optimiser.

    Args:
        model: started or restored, on the device to compute on.
        objective: what it learns, and where anchors come from.
        recipe: all choices.
        ranks: the processes that share each batch.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        recipe: Recipe,
        ranks: Ranks | None = None,
    ) -> None:
        self.model = model.train().requires_grad_(True)
        self.recipe = recipe
        self.step = 0
        self.average = {name: value.detach().clone() for name, value in model.named_parameters()}
        self.optimiser = torch.optim.AdamW(parameter_groups(model, recipe), betas=recipe.betas, fused=True)
        self._ranks = ranks or Ranks()
        self._objective = objective
        anchors, rows = objective.data.anchors, objective.data.rows
        texts = anchors - rows.rows_before[anchors]
        self._order = AnchorOrder(len(anchors), recipe.seed, texts, recipe.anchors_per_text)

    def advance(self) -> StepReport:
        """One step over `batch_anchors` anchors."""
        recipe, step = self.recipe, self.step
        for group in self.optimiser.param_groups:
            group["lr"] = group["peak"] * lr_factor(
                step, recipe.steps, recipe.warmup_fraction, recipe.decay_fraction
            )
        total, counts = 0.0, Agreement.nothing(recipe.num_proposals)
        for group_index in range(self._ranks.rank, recipe.num_groups, self._ranks.size):
            loss, found = self._group(group_index)
            total, counts = total + loss, counts.plus(found)
        self._ranks.sum_gradients(self.model)
        self._objective.restrain(self.model, step)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), recipe.clip_norm)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self._average()
        self.step += 1
        total = float(self._ranks.total(torch.tensor(total, dtype=torch.float64)))
        return StepReport(step, total / recipe.batch_anchors, float(norm), counts.reduced(self._ranks))

    def _group(self, index: int) -> tuple[float, Agreement]:
        recipe = self.recipe
        start = self.step * recipe.batch_anchors + index * recipe.group_anchors
        pivots = self._objective.data.anchors[self._order.take(start, recipe.group_anchors)]
        k = recipe.num_proposals
        if recipe.variable_block:
            k = block_size_of(self.step, index, k, recipe.block_bias, recipe.seed)
        group = self._objective.group(self.model, pivots, k, self.step)
        loss = self._objective.loss(group, self.step)
        (loss / recipe.batch_anchors).backward()
        counts = counts_of(group, recipe.num_proposals)
        return float(loss.detach()), counts

    @torch.no_grad()
    def _average(self) -> None:
        if not self.recipe.average_decay or self.step % _AVERAGE_EVERY:
            return
        # A young average forgets faster, so that the start does not linger.
        decay = min(self.recipe.average_decay**_AVERAGE_EVERY, (self.step + 1) / (self.step + 100))
        for name, value in self.model.named_parameters():
            self.average[name].lerp_(value.detach(), 1.0 - decay)


def counts_of(group: Group, num_proposals: int) -> Agreement:
    """The agreement of one group."""
    found = group.found
    return agreement(found.log_q, found.log_p, found.greedy, group.valid, num_proposals)


def parameter_groups(model: nn.Module, recipe: Recipe) -> list[dict[str, object]]:
    """Backbone and head with their own learning rates; norms, biases and embeddings do not decay."""
    groups = []
    named = list(model.named_parameters())
    for is_head, rate in ((False, recipe.learning_rate), (True, recipe.head_learning_rate)):
        for decays in (True, False):
            chosen = [
                value
                for name, value in named
                if name.startswith(_HEADS) == is_head and _decays(name, value) == decays
            ]
            weight_decay = recipe.weight_decay if decays else 0.0
            groups.append({"params": chosen, "lr": rate, "peak": rate, "weight_decay": weight_decay})
    return groups


def _decays(name: str, value: torch.Tensor) -> bool:
    return value.dim() == 2 and "embedding" not in name


@torch.no_grad()
def evaluate(
    model: nn.Module, objective: Objective, pivots: Iterable[torch.Tensor], num_proposals: int
) -> Agreement:
    """Agreement over batches of pivot rows, every block of the full size."""
    counts = Agreement.nothing(num_proposals)
    for rows in pivots:
        counts = counts.plus(counts_of(objective.group(model, rows, num_proposals, None), num_proposals))
    return counts
