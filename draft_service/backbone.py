"""The drafter's backbone: Qwen3-style blocks over one short block, without history and mask.

N items, m context slots, T token slots, K mask rows, S = T + K queries, D width, H heads (H_kv for
keys and values), C width of a head.

Every query sees every context slot and every query (no causal mask). RoPE is local: it starts at
the first token of an item's group, so positions never grow with the text. Shorter items are padded
(tokens on the left, mask rows on the right); padding is never a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from draft_service.checkpoint import DraftCheckpointConfig


@dataclass(frozen=True, eq=False)
class BlockLayout:
    """Where everything of a padded batch sits.

    Attributes:
        context_positions: [N, m] RoPE positions of the context slots.
        query_positions: [N, S] RoPE positions of tokens, then mask rows.
        key_mask: [N, m + S] True for real keys; None when nothing is padded.
    """

    context_positions: torch.Tensor
    query_positions: torch.Tensor
    key_mask: torch.Tensor | None


def block_layout(num_tokens: Sequence[int], num_masks: Sequence[int], num_context: int) -> BlockLayout:
    """Lays out a batch.

    Args:
        num_tokens: per item, its committed tokens (1..G), padded on the left to the most.
        num_masks: per item, its mask rows, padded on the right to the most.
        num_context: m.
    """
    tokens = torch.tensor(num_tokens)[:, None]  # [N, 1]
    masks = torch.tensor(num_masks)[:, None]  # [N, 1]
    width, depth = int(tokens.max()), int(masks.max())
    padding = width - tokens  # [N, 1]
    slots = torch.arange(width + depth)[None, :]  # [1, S]
    real = (slots >= padding) & (slots < width + masks)  # [N, S]
    # The pivot is the token before the anchor; with the anchor alone it would lie at -1.
    context = (tokens - 2).clamp_min(0).expand(-1, num_context)
    key_mask = None
    if not bool(real.all()):
        key_mask = torch.cat([torch.ones(len(num_tokens), num_context, dtype=torch.bool), real], dim=1)
    return BlockLayout(context, (slots - padding).clamp_min(0), key_mask)


def rotary(positions: torch.Tensor, head_dim: int, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine [N, 1, S, C] for positions [N, S], in float32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=positions.device) / head_dim
    frequencies = 1.0 / torch.pow(theta, exponents)  # [C/2]
    angles = positions[..., None].to(torch.float32) * frequencies  # [N, S, C/2]
    angles = torch.cat([angles, angles], dim=-1)[:, None]
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Applies RoPE (halves convention) to [N, H, S, C]."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class Attention(nn.Module):
    """Grouped-query attention with per-head RMSNorm of queries and keys."""

    def __init__(self, config: DraftCheckpointConfig) -> None:
        super().__init__()
        width, head_dim = config.hidden_size, config.head_dim
        self.head_dim = head_dim
        self.q_proj = nn.Linear(width, config.num_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(width, config.num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(width, config.num_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(config.num_heads * head_dim, width, bias=False)
        self.q_norm = nn.RMSNorm(head_dim, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(head_dim, eps=config.rms_norm_eps)

    def _heads(self, projected: torch.Tensor) -> torch.Tensor:
        heads: torch.Tensor = projected.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        return heads

    def forward(
        self,
        x: torch.Tensor,  # [N, S, D], normed
        context: torch.Tensor,  # [N, m, D], not normed by this layer
        angles: tuple[torch.Tensor, torch.Tensor],  # [N, 1, m + S, C] each
        key_mask: torch.Tensor | None,  # [N, 1, 1, m + S]
    ) -> torch.Tensor:
        num_context = context.shape[1]
        cos, sin = angles
        keys_from = torch.cat([context, x], dim=1)  # [N, m + S, D]
        q = self.q_norm(self._heads(self.q_proj(x)))
        k = self.k_norm(self._heads(self.k_proj(keys_from)))
        v = self._heads(self.v_proj(keys_from))
        q = rotate(q, cos[:, :, num_context:], sin[:, :, num_context:])
        k = rotate(k, cos, sin)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=key_mask, enable_gqa=True)
        attended: torch.Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return attended


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, config: DraftCheckpointConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        down: torch.Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return down


class Block(nn.Module):
    """One layer: norm, attention, residual, norm, SwiGLU, residual."""

    def __init__(self, config: DraftCheckpointConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = Mlp(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self,
        x: torch.Tensor,  # [N, S, D]
        context: torch.Tensor,  # [N, m, D]
        angles: tuple[torch.Tensor, torch.Tensor],
        key_mask: torch.Tensor | None,
    ) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), context, angles, key_mask)
        out: torch.Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out
