"""The dlite_v1 drafter network; attribute names are the keys of the checkpoint.

N items, m context slots, T token slots, K mask rows, D width, R rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from draft_service.backbone import Block, block_layout, rotary
from draft_service.checkpoint import DraftCheckpointConfig
from draft_service.sequential_head import SequentialHead


class DraftModel(nn.Module):
    """Backbone and sequential head. The target's embedding is an input, not a part."""

    target_layer_ids: torch.Tensor

    def __init__(self, config: DraftCheckpointConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.context_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.layer_depth_embedding = nn.Embedding(config.num_target_layers, config.hidden_size)
        self.sequential_head = SequentialHead(config)
        ids = torch.tensor(config.target_layer_ids)
        self.register_buffer("target_layer_ids", ids, persistent=False)

    def fuse(self, features: torch.Tensor) -> torch.Tensor:
        """The context slots [N, m, D] of pivot features [N, m, D]."""
        fused: torch.Tensor = self.context_norm(features + self.layer_depth_embedding(self.target_layer_ids))
        return fused

    def hidden(
        self,
        context: torch.Tensor,  # [N, m, D]
        queries: torch.Tensor,  # [N, T + K, D]: token rows padded on the left, mask rows on the right
        num_tokens: Sequence[int],
        num_masks: Sequence[int],
    ) -> torch.Tensor:
        """The backbone's states u_1..u_K [N, K, D], after the final norm."""
        layout = block_layout(num_tokens, num_masks, context.shape[1])
        positions = torch.cat([layout.context_positions, layout.query_positions], dim=1)
        angles = rotary(positions.to(queries.device), self.config.head_dim, self.config.rope_theta)
        key_mask = layout.key_mask
        if key_mask is not None:
            key_mask = key_mask[:, None, None, :].to(queries.device)
        x = queries
        for layer in self.layers:
            x = layer(x, context, angles, key_mask)
        states: torch.Tensor = self.norm(x[:, max(num_tokens) :])
        return states

    def initial_state(
        self,
        before_anchor: torch.Tensor,  # [N], any id where has_before is False
        has_before: torch.Tensor,  # [N] bool
    ) -> torch.Tensor:
        """The head's first state [N, R]: zero, or with G > 1 one step on the token before the anchor."""
        state = self.sequential_head.zero_state(len(before_anchor))
        if self.config.anchor_group_size == 1:
            return state
        primed = self.sequential_head.advance(state, before_anchor)
        return torch.where(has_before[:, None], primed, state)
