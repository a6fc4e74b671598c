"""Faster twins of the library's decoder modules: one matrix for q, k, v and one for gate, up; norm
and rotary embedding in few operations. The library's layer and model classes stay around them.

Only classes listed here are swapped, any other keeps its forward and gets packed matrices; the
self-test compares the result with the model as it was loaded.

Shapes: N rows, A query heads, H key/value heads, C head width, D width, I inner width.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel

from target_service import linear
from target_service.attention import StepContext, attend

_FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3")
_ATTENTIONS = {f"{family}Attention" for family in _FAMILIES}
_MLPS = {f"{family}MLP" for family in _FAMILIES}
_NORMS = {f"{family}RMSNorm" for family in _FAMILIES}

Pack = Callable[[torch.Tensor, torch.Tensor | None], nn.Module]


def joined(pack: Pack, parts: list[nn.Linear]) -> nn.Module:
    """One matrix for several that read the same input; outputs follow one another."""
    weights: list[torch.Tensor] = [part.weight for part in parts]
    biases: list[torch.Tensor] = [part.bias for part in parts if part.bias is not None]
    assert len(biases) in (0, len(parts))
    return pack(torch.cat(weights), torch.cat(biases) if biases else None)


class FusedMLP(nn.Module):
    """down(act(gate(x)) * up(x))."""

    def __init__(self, stock: Any, pack: Pack) -> None:
        super().__init__()
        self.gate_up = joined(pack, [stock.gate_proj, stock.up_proj])
        self.down = pack(stock.down_proj.weight, stock.down_proj.bias)
        self.act = stock.act_fn
        self.width = int(stock.gate_proj.out_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [1, N, D] -> [1, N, D]
        both = self.gate_up(x)  # [1, N, 2I]
        inner = self.act(both[..., : self.width])
        inner *= both[..., self.width :]
        result: torch.Tensor = self.down(inner)
        return result


class FusedAttention(nn.Module):
    """Projections, per-head norms where the model has them, rotary embedding, our attention."""

    def __init__(self, stock: Any, pack: Pack) -> None:
        super().__init__()
        self.layer_idx = int(stock.layer_idx)
        self.head_dim = int(stock.head_dim)
        self.scaling = float(stock.scaling)
        self.num_heads = stock.q_proj.out_features // self.head_dim
        self.num_rotated = self.num_heads + stock.k_proj.out_features // self.head_dim  # A + H
        self.qkv = joined(pack, [stock.q_proj, stock.k_proj, stock.v_proj])
        self.out = pack(stock.o_proj.weight, stock.o_proj.bias)
        self.q_norm = getattr(stock, "q_norm", None)
        self.k_norm = getattr(stock, "k_norm", None)

    def forward(
        self,
        hidden_states: torch.Tensor,  # [1, N, D]
        position_embeddings: tuple[torch.Tensor, torch.Tensor],  # of `SignedRotary`
        *,
        paged: StepContext,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        num_rows = hidden_states.shape[1]
        heads = self.qkv(hidden_states).view(num_rows, -1, self.head_dim)  # [N, A + 2H, C]
        rotated = heads[:, : self.num_rotated]
        if self.q_norm is not None and self.k_norm is not None:
            queries, keys = rotated[:, : self.num_heads], rotated[:, self.num_heads :]
            rotated = torch.cat([self.q_norm(queries), self.k_norm(keys)], dim=1)
        cos, signed_sin = position_embeddings
        swapped = torch.roll(rotated, self.head_dim // 2, -1)
        rotated = torch.addcmul(rotated * cos, swapped, signed_sin).transpose(0, 1)  # [A + H, N, C]
        values = heads[:, self.num_rotated :].transpose(0, 1)
        queries, keys = rotated[: self.num_heads], rotated[self.num_heads :]
        outputs = attend(self.layer_idx, (queries, keys, values), paged, self.scaling)  # [N, A, C]
        return self.out(outputs.reshape(1, num_rows, -1)), None


class FusedRMSNorm(nn.Module):
    """weight * x / rms(x), float32 only: narrower types round in the library's own order."""

    def __init__(self, stock: Any) -> None:
        super().__init__()
        self.weight = stock.weight
        self.shape = tuple(stock.weight.shape)
        self.epsilon = float(stock.variance_epsilon)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self.shape, self.weight, self.epsilon)


class SignedRotary(nn.Module):
    """cos and sin [N, 1, C] of a step, sin with the sign of the rotated half.

    rotate_half(x) = (-x2, x1) is the swapped halves (x2, x1) times (-1, 1).
    """

    def __init__(self, stock: nn.Module) -> None:
        super().__init__()
        self.stock = stock

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = self.stock(x, position_ids)  # [1, N, C]
        half = sin.shape[-1] // 2
        signed = torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)
        return cos[0, :, None], signed[0, :, None]


def install(model: PreTrainedModel, kernel: str) -> None:
    """Swaps the modules of a loaded model in place; each float32 copy is freed as it is packed.

    The token embedding keeps its own table, also where the head's matrix is the same tensor.

    Args:
        kernel: one of `linear.KERNELS`, available here; `torch` changes nothing.
    """
    if kernel == linear.TORCH:
        return

    _fuse_layers(model, _packer(kernel))
    for name, module in list(model.named_modules()):
        if type(module).__name__ in _NORMS and module.weight.dtype == torch.float32:
            _swap(model, name, FusedRMSNorm(module))
    pack_matrices(model, kernel)


def pack_matrices(model: PreTrainedModel, kernel: str) -> None:
    """Swaps every matrix that is still the library's, one by one."""
    pack = _packer(kernel)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear):
            _swap(model, name, pack(module.weight, module.bias))
    _return_freed_memory()


def _packer(kernel: str) -> Pack:
    return lambda weight, bias: linear.pack(kernel, weight, bias)


def _fuse_layers(model: PreTrainedModel, pack: Pack) -> None:
    layers = list(model.model.layers)
    for layer in layers:
        if type(layer.mlp).__name__ in _MLPS:
            layer.mlp = FusedMLP(layer.mlp, pack)
    # The rotary embedding is one for all layers, so the layers are swapped together.
    if all(type(layer.self_attn).__name__ in _ATTENTIONS for layer in layers):
        for layer in layers:
            layer.self_attn = FusedAttention(layer.self_attn, pack)
        model.model.rotary_emb = SignedRotary(model.model.rotary_emb)


def _swap(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, module)


def _return_freed_memory() -> None:
    """Hands the freed float32 copies back to the system; glibc keeps them otherwise."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
