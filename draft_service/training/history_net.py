"""Drafters that keep a history, to compare with: after DFlash, and after DSpark. Never served.

DFlash-style: the tapped states of *every* position, `RMSNorm(Linear([h_1; ..; h_m]))`, are keys and
values in every layer; anchor and mask rows see all of them and each other; the target's LM head turns
the states into laws, one position at a time and blind to each other. DSpark-style adds a Markov head,
a low-rank bias `W_2 W_1[d_{j-1}]` on the logits, and a confidence head, the chance that a proposal
stands, from the state and `W_1[d_{j-1}]`. Positions are absolute.

T texts, n anchors, L rows of history, m tapped layers, K mask rows, S = 1 + K, D width, H_kv heads of
width C, V vocabulary, V_d drafter vocabulary, R rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from draft_service.backbone import Attention, Block, rotary, rotate
from draft_service.checkpoint import DraftCheckpointConfig

_STD = 0.02


@dataclass(frozen=True, eq=False)
class Cache:
    """What one layer keeps of every row: keys and values [.., H_kv, L, C], keys with RoPE."""

    keys: torch.Tensor
    values: torch.Tensor

    @property
    def num_bytes(self) -> int:
        return sum(one.numel() * one.element_size() for one in (self.keys, self.values))


class MarkovHead(nn.Module):
    """A bias on a position's logits by the token before it."""

    def __init__(self, config: DraftCheckpointConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, config.rank)
        self.output = nn.Linear(config.rank, config.num_logits, bias=False)

    def forward(self, prev_tokens: torch.Tensor) -> torch.Tensor:
        bias: torch.Tensor = self.output(self.embedding(prev_tokens))
        return bias


class HistoryNet(nn.Module):
    """The net; embedding and LM head are the target's and are inputs.

    Args:
        config: sizes, as a DLite drafter's.
        has_heads: DSpark-style, else DFlash-style.
    """

    def __init__(self, config: DraftCheckpointConfig, *, has_heads: bool) -> None:
        super().__init__()
        width = config.hidden_size
        self.config = config
        self.fuse = nn.Linear(len(config.target_layer_ids) * width, width, bias=False)
        self.context_norm = nn.RMSNorm(width, eps=config.rms_norm_eps)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(width, eps=config.rms_norm_eps)
        self.markov = MarkovHead(config) if has_heads else None
        self.confidence = nn.Linear(width + config.rank, 1) if has_heads else None

    def start(self, seed: int) -> None:
        """Seeded weights; the fused row starts as the last layer's state, the Markov bias as nothing."""
        generator = torch.Generator().manual_seed(seed)
        width = self.config.hidden_size
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if "norm" in name:
                    parameter.fill_(1.0)
                elif name == "markov.output.weight" or name.endswith("bias"):
                    parameter.zero_()
                else:
                    parameter.normal_(0.0, _STD, generator=generator)
            self.fuse.weight[:, -width:] += torch.eye(width)

    def caches(self, features: torch.Tensor, positions: torch.Tensor) -> list[Cache]:
        """Keys and values of each layer for rows with features [T, L, m, D] at positions [T, L].

        A row's depend on that row alone, so a cache grows row by row to the same values.
        """
        context = self.context_norm(self.fuse(features.flatten(2)))  # [T, L, D]
        cos, sin = rotary(positions, self.config.head_dim, self.config.rope_theta)
        found = []
        for block in self.layers:
            attention = _attention(block)
            keys = attention.k_norm(_heads(attention.k_proj(context), attention))
            found.append(Cache(rotate(keys, cos, sin), _heads(attention.v_proj(context), attention)))
        return found

    def states(
        self,
        queries: torch.Tensor,  # [n, S, D]: anchor, then mask rows
        anchors: torch.Tensor,  # [n] absolute positions
        caches: list[Cache],  # [n, H_kv, L, C] each
        visible: torch.Tensor,  # [n, L] bool
    ) -> torch.Tensor:
        """u_1..u_K [n, K, D], after the final norm."""
        size = queries.shape[1]
        slots = torch.arange(size, device=queries.device)[None, :]
        angles = rotary(anchors[:, None] + slots, self.config.head_dim, self.config.rope_theta)
        x = queries
        for block, cache in zip(self.layers, caches, strict=True):
            assert isinstance(block, Block)
            x = x + _attend(_attention(block), block.input_layernorm(x), angles, cache, visible)
            x = x + block.mlp(block.post_attention_layernorm(x))
        states: torch.Tensor = self.norm(x[:, 1:])
        return states

    def logits(self, states: torch.Tensor, prev_tokens: torch.Tensor, lm_head: torch.Tensor) -> torch.Tensor:
        """[.., V_d] from states [.., D], the tokens before them [..] and the LM head [V_d, D]."""
        base = states @ lm_head.T.to(states.dtype)
        return base if self.markov is None else base + self.markov(prev_tokens)

    def confidences(self, states: torch.Tensor, prev_tokens: torch.Tensor) -> torch.Tensor | None:
        """Logits [..] of the chance that a proposal stands if those before it do; None without the head."""
        if self.markov is None or self.confidence is None:
            return None
        seen = torch.cat([states, self.markov.embedding(prev_tokens).to(states.dtype)], dim=-1)
        found: torch.Tensor = self.confidence(seen)[..., 0]
        return found


def _attention(block: nn.Module) -> Attention:
    assert isinstance(block, Block)
    return block.self_attn


def _heads(projected: torch.Tensor, attention: Attention) -> torch.Tensor:
    heads: torch.Tensor = projected.unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
    return heads


def _attend(
    attention: Attention,
    x: torch.Tensor,  # [n, S, D], normed
    angles: tuple[torch.Tensor, torch.Tensor],
    cache: Cache,
    visible: torch.Tensor,  # [n, L] bool
) -> torch.Tensor:
    cos, sin = angles
    q = rotate(attention.q_norm(_heads(attention.q_proj(x), attention)), cos, sin)
    k = rotate(attention.k_norm(_heads(attention.k_proj(x), attention)), cos, sin)
    v = _heads(attention.v_proj(x), attention)
    mixed = _mix(q, (cache.keys, cache.values), (k, v), visible)
    attended: torch.Tensor = attention.o_proj(mixed.transpose(1, 2).flatten(2))
    return attended


def _mix(
    q: torch.Tensor,  # [n, H, S, C]
    history: tuple[torch.Tensor, torch.Tensor],  # [n, H_kv, L, C] each
    block: tuple[torch.Tensor, torch.Tensor],  # [n, H_kv, S, C] each
    visible: torch.Tensor,  # [n, L] bool
) -> torch.Tensor:
    """Attention [n, H, S, C] over the visible rows and the block, without a copy of the history: its
    scores and the block's are made apart, and the heads that share keys and values are rows of one product.
    """
    keys, values = history
    own_keys, own_values = block
    folded = q.unflatten(1, (keys.shape[1], -1)).flatten(2, 3) * q.shape[-1] ** -0.5  # [n, H_kv, G S, C]
    scores = folded @ keys.to(q.dtype).transpose(2, 3)  # [n, H_kv, G S, L]
    scores = scores.masked_fill(~visible[:, None, None, :], -torch.inf)
    both = torch.cat([scores, folded @ own_keys.to(q.dtype).transpose(2, 3)], dim=-1)
    weights = torch.softmax(both.to(torch.float32), dim=-1).to(q.dtype)
    length = keys.shape[2]
    mixed = weights[..., :length] @ values.to(q.dtype) + weights[..., length:] @ own_values.to(q.dtype)
    out: torch.Tensor = mixed.unflatten(2, (-1, q.shape[2])).flatten(1, 2)
    return out
