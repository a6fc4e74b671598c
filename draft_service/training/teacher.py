"""The teacher of the two-stage path: the drafter's net that also sees a short window of history.

Its layers have the window's rows as extra keys and values: `RMSNorm(Linear([h_first; h_mid; h_last]))`
of the tokens a-W .. a-2. Positions are absolute: rows at their own, the pivot's slots at a - 1, the
anchor at a, mask row j at a + j. It is trained, taught from, and never served.

n anchors, W window, m tapped layers, K mask rows, D width, C width of a head.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn

from draft_service.backbone import rotary
from draft_service.checkpoint import TEACHER_ROLE, DraftCheckpointConfig
from draft_service.model import DraftModel
from draft_service.training.data import AnchorBatch, WindowBatch
from draft_service.weights import config_document, save_drafter

_LAYERS_OF_A_ROW = 3
_STD = 0.02


class TeacherModel(DraftModel):
    """Backbone, window and sequential head."""

    def __init__(self, config: DraftCheckpointConfig) -> None:
        super().__init__(config)
        width = config.hidden_size
        self.history_proj = nn.Linear(_LAYERS_OF_A_ROW * width, width, bias=False)
        self.history_norm = nn.RMSNorm(width, eps=config.rms_norm_eps)

    def start_window(self, seed: int) -> None:
        """Seeded weights of the window: the state that decides the next token, and noise on the others."""
        generator = torch.Generator().manual_seed(seed)
        width = self.config.hidden_size
        with torch.no_grad():
            self.history_proj.weight.normal_(0.0, _STD, generator=generator)
            self.history_proj.weight[:, -width:] += torch.eye(width)
            self.history_norm.weight.fill_(1.0)

    def states(
        self,
        features: torch.Tensor,  # [n, m, D] of the pivots
        queries: torch.Tensor,  # [n, 1 + K, D]: anchor, then mask rows
        window: WindowBatch,
    ) -> torch.Tensor:
        """The backbone's states u_1..u_K [n, K, D], after the final norm."""
        own = self.fuse(features)  # [n, m, D]
        rows: torch.Tensor = self.history_norm(self.history_proj(window.features.flatten(2)))
        context = torch.cat([rows, own], dim=1)  # [n, W - 1 + m, D]
        anchors = window.anchors[:, None]  # [n, 1]
        slots = torch.arange(queries.shape[1], device=queries.device)[None, :]
        positions = [window.positions, (anchors - 1).expand(-1, own.shape[1]), anchors + slots]
        angles = rotary(torch.cat(positions, dim=1), self.config.head_dim, self.config.rope_theta)
        seen = torch.ones(len(own), own.shape[1] + queries.shape[1], dtype=torch.bool, device=own.device)
        key_mask = torch.cat([window.valid, seen], dim=1)[:, None, None, :]
        x = queries
        for layer in self.layers:
            x = layer(x, context, angles, key_mask)
        states: torch.Tensor = self.norm(x[:, 1:])
        return states


def teacher_log_law(
    model: TeacherModel, embedding: torch.Tensor, batch: AnchorBatch, window: WindowBatch
) -> torch.Tensor:
    """log q [n, k, V_d] float32 of a teacher, with the true tokens before each position."""
    count, width = batch.tokens.shape
    masks = batch.tokens.new_full((count, width - 1), model.config.mask_token_id)
    queries = embedding[torch.cat([batch.tokens[:, :1], masks], dim=1)]  # [n, 1 + k, D]
    head = model.sequential_head
    hidden = model.states(batch.features, queries, window)
    logits = head.block_logits(hidden, batch.tokens[:, :-1], head.zero_state(count))
    return torch.log_softmax(logits.to(torch.float32), dim=-1)


def save_teacher(
    path: Path, config: DraftCheckpointConfig, model: DraftModel, token_ids: torch.Tensor | None
) -> None:
    """As `save_drafter`; the role in its config keeps every service from loading it."""
    save_drafter(path, config, model, token_ids)
    document = config_document(config)
    document["dlite_config"]["model_role"] = TEACHER_ROLE
    (path / "config.json").write_text(json.dumps(document, indent=2) + "\n")
