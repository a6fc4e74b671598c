"""How a history-keeping net is trained: on the same anchors, laws and losses as a DLite drafter.

T texts, n anchors, L rows, k proposals.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from draft_service.training.data import AnchorBatch, HistoryBatch
from draft_service.training.forward import autocast, laws
from draft_service.training.history_net import Cache, HistoryNet
from draft_service.training.losses import position_weights
from draft_service.training.objective import DrafterObjective, Group


class HistoryObjective(DrafterObjective):
    """The net against the target; a confidence head learns the overlap of the laws beside it."""

    def group(self, model: nn.Module, pivots: torch.Tensor, k: int, step: int | None) -> Group:
        assert isinstance(model, HistoryNet)
        batch = self.data.gather(pivots, k).to(self.device)
        history = self.data.history(pivots, self.recipe.history_rows).to(self.device)
        with autocast(self.device, self.recipe.autocast):
            states = block_states(model, self.frozen.embedding, batch, history)
            logits = model.logits(states, batch.tokens[:, :-1], self.frozen.lm_head)
            confidence = model.confidences(states, batch.tokens[:, :-1])
        log_q = torch.log_softmax(logits.to(torch.float32), dim=-1)
        return Group(laws(log_q, self.frozen, batch), batch.valid, confidence=confidence)

    def loss(self, group: Group, step: int) -> torch.Tensor:
        total = super().loss(group, step)
        if group.confidence is None:
            return total
        found = group.found
        overlap = torch.minimum(found.log_q, found.log_p).detach().exp().sum(dim=-1).clamp(0.0, 1.0)
        apart = F.binary_cross_entropy_with_logits(
            group.confidence.to(torch.float32), overlap, reduction="none"
        )
        return total + (apart * position_weights(group.valid, self.recipe.position_decay)).sum()

    def restrain(self, model: nn.Module, step: int) -> None:
        """Everything moves."""


def block_states(
    model: HistoryNet, embedding: torch.Tensor, batch: AnchorBatch, history: HistoryBatch
) -> torch.Tensor:
    """u_1..u_k [n, k, D]; the rows of a text are projected once for all of its anchors."""
    count, width = batch.tokens.shape
    masks = batch.tokens.new_full((count, width - 1), model.config.mask_token_id)
    queries = embedding[torch.cat([batch.tokens[:, :1], masks], dim=1)]  # [n, 1 + k, D]
    own = [
        Cache(one.keys[history.texts], one.values[history.texts])
        for one in model.caches(history.features, history.positions)
    ]
    return model.states(queries, history.anchors, own, history.visible)
