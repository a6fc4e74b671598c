"""An untrained DLite drafter for any target: it shows the whole path of a round, and nothing else.

Its proposals are noise, so its accept length is about 1. Everything that shows it says so.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deploy.model_cache import prepared
from protos.errors import ContractMismatch

LABEL = "untrained, accept length about 1"
_RECIPE = "v1"
_SEED = 0
_INIT_STD = 0.02
_BLOCK_SIZE = 8
_MOST_TAPPED = 8
# SmolLM2 has no mask token. An id that text hardly ever holds does as well.
_MASK_TOKEN_ID = 16


def untrained_drafter(target: Path) -> Path:
    """A checkpoint folder for the target, written into the user's cache at the first use.

    Raises:
        ContractMismatch: the target's config lacks a size that a drafter needs.
    """
    config = draft_config(_read_config(target))
    name = f"untrained-{config['hidden_size']}x{config['num_target_layers']}-{config['vocab_size']}-{_RECIPE}"
    return prepared(name, lambda folder: write_checkpoint(config, folder))


def _read_config(target: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((target / "config.json").read_text())
    return loaded


def draft_config(target: dict[str, Any]) -> dict[str, Any]:
    """`config.json` of a two-layer drafter with the target's sizes."""
    from draft_service.target_layers import build_target_layer_ids

    try:
        hidden, num_layers, vocab = (
            target[name] for name in ("hidden_size", "num_hidden_layers", "vocab_size")
        )
        heads = target["num_attention_heads"]
    except KeyError as error:
        raise ContractMismatch(
            f"the target's config.json has no {error.args[0]}", field="--target"
        ) from error
    tapped = build_target_layer_ids(num_layers, min(_MOST_TAPPED, num_layers))
    return {
        "architectures": ["DLiteDraftModel"],
        "model_type": "qwen3",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": target.get("intermediate_size", 3 * hidden),
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": target.get("num_key_value_heads", heads),
        "head_dim": target.get("head_dim") or hidden // heads,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "num_target_layers": num_layers,
        "block_size": _BLOCK_SIZE,
        "dtype": "float32",
        "dlite_config": {
            "architecture_version": "dlite_v1",
            "model_role": "pivot_q_student",
            "chs_num_layers": len(tapped),
            "target_layer_ids": list(tapped),
            "sequential_head": "rnn",
            "sequential_rank": max(hidden // 8, 1),
            "mask_token_id": min(_MASK_TOKEN_ID, vocab - 1),
            "anchor_group_size": 1,
        },
    }


def write_checkpoint(config: dict[str, Any], folder: Path) -> None:
    """Writes config and random weights (a fixed seed, so every machine has the same drafter)."""
    import torch
    from safetensors.torch import save_file

    from draft_service.checkpoint import read_draft_config
    from draft_service.model import DraftModel

    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    model = DraftModel(read_draft_config(folder))
    generator = torch.Generator().manual_seed(_SEED)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, _INIT_STD, generator=generator)
    save_file(model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
