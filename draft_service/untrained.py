"""A dlite_v1 checkpoint with random weights for a given target: the start of training, and what a
demo can show before anything is trained (accept length about 1)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from draft_service.checkpoint import DraftCheckpointConfig
from draft_service.loader import read_target_config
from draft_service.model import DraftModel
from draft_service.weights import save_checkpoint
from protos.errors import ContractMismatch
from protos.feature_layers import build_target_layer_ids

_STD = 0.02


@dataclass(frozen=True)
class UntrainedOptions:
    """Sizes that the target does not give; rank 0 means D / 8."""

    mask_token_id: int
    block_size: int = 8
    num_layers: int = 2
    num_tapped: int = 8
    rank: int = 0
    anchor_group_size: int = 1
    variable_block: bool = False
    seed: int = 0


def untrained_config(target: Path, options: UntrainedOptions) -> DraftCheckpointConfig:
    """A drafter configuration with the target's widths and heads.

    Raises:
        ContractMismatch: the target's config lacks a needed field.
        ValueError: the target has too few layers for `num_tapped`.
    """
    document = read_target_config(target)
    hidden_size = _size(document, "hidden_size")
    num_heads = _size(document, "num_attention_heads")
    num_target_layers = _size(document, "num_hidden_layers")
    rope = document.get("rope_parameters") or {}
    return DraftCheckpointConfig(
        vocab_size=_size(document, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_size(document, "intermediate_size"),
        num_layers=options.num_layers,
        num_heads=num_heads,
        num_kv_heads=int(document.get("num_key_value_heads") or num_heads),
        head_dim=int(document.get("head_dim") or hidden_size // num_heads),
        rms_norm_eps=float(document.get("rms_norm_eps", 1e-6)),
        rope_theta=float(document.get("rope_theta") or rope.get("rope_theta") or 10000.0),
        num_target_layers=num_target_layers,
        block_size=options.block_size,
        target_layer_ids=build_target_layer_ids(num_target_layers, options.num_tapped),
        rank=options.rank or max(hidden_size // 8, 1),
        mask_token_id=options.mask_token_id,
        anchor_group_size=options.anchor_group_size,
        variable_block=options.variable_block,
    )


def initialise(config: DraftCheckpointConfig, seed: int) -> DraftModel:
    """A model with seeded weights: norms one, biases zero, everything else N(0, 0.02)."""
    model = DraftModel(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.fill_(1.0)
            elif name.endswith("bias"):
                parameter.zero_()
            else:
                parameter.normal_(0.0, _STD, generator=generator)
    return model.eval()


def save_untrained(path: Path, target: Path, options: UntrainedOptions) -> DraftCheckpointConfig:
    """Writes an untrained checkpoint for a target folder and returns its configuration."""
    config = untrained_config(target, options)
    save_checkpoint(path, config, initialise(config, options.seed))
    return config


def _size(document: dict[str, Any], field: str) -> int:
    value = document.get(field)
    if type(value) is not int or value < 1:
        raise ContractMismatch(f"the target's config has no usable {field} ({value!r})", field=field)
    return value
