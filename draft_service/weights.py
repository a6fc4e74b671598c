"""The tensors of a dlite_v1 checkpoint: load with every name and shape checked, and save."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from draft_service.checkpoint import DraftCheckpointConfig
from draft_service.model import DraftModel
from draft_service.row_scales import SCALE_KEYS, compacted, load_table, refuse_lonely_scales
from draft_service.tensor_folder import SINGLE, TensorFolder
from protos.errors import ContractMismatch

OUTPUT_KEY = "sequential_head.output_proj.weight"
MAP_KEY = "d2t"


def load_model(path: Path, config: DraftCheckpointConfig) -> DraftModel:
    """The drafter in float32; tables that are stored as int8 are expanded (row_scales.py).

    Raises:
        ContractMismatch: a tensor is missing, unknown, of another shape, not finite, or the output
            projection is all zero.
    """
    folder = TensorFolder(path)
    model = DraftModel(config)
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    missing = sorted(set(wanted) - folder.keys)
    unknown = sorted(folder.keys - set(wanted) - SCALE_KEYS - {MAP_KEY})
    if missing:
        hint = f"; it has the unknown tensor {unknown[0]}" if unknown else ""
        raise ContractMismatch(f"{path} has no tensor {missing[0]}{hint}", field=missing[0])
    if unknown:
        raise ContractMismatch(f"{path} has a tensor that no dlite_v1 drafter has", field=unknown[0])
    stored = {name: _stored(folder, name, shape) for name, shape in wanted.items()}
    refuse_lonely_scales(folder, [name for name, tensor in stored.items() if tensor.dtype == torch.int8])
    model.load_state_dict({name: _as_float(folder, name, tensor) for name, tensor in stored.items()})
    if not bool(model.sequential_head.output_proj.weight.any()):
        raise ContractMismatch(
            f"{path}: the output projection is all zero: nothing to draft with", field=OUTPUT_KEY
        )
    return model.eval().requires_grad_(False)


def _stored(folder: TensorFolder, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    stored = folder.load(name)
    if tuple(stored.shape) != shape:
        raise ContractMismatch(f"shape {list(stored.shape)}, the config asks for {list(shape)}", field=name)
    return stored


def _as_float(folder: TensorFolder, name: str, stored: torch.Tensor) -> torch.Tensor:
    if stored.dtype == torch.int8:
        return load_table(folder, name, stored)
    if not stored.is_floating_point() or not bool(torch.isfinite(stored).all()):
        raise ContractMismatch(f"{stored.dtype} values that are not all finite floats", field=name)
    return stored.to(torch.float32)


def load_token_ids(path: Path, config: DraftCheckpointConfig) -> torch.Tensor:
    """The target's id of each logit, [V_d] int64: `d2t`, or 0..V-1 without a reduced vocabulary.

    Raises:
        ContractMismatch: the map is missing, unwanted, of another size, or has an id twice or
            outside the target's vocabulary.
    """
    folder = TensorFolder(path)
    if config.draft_vocab_size is None:
        if MAP_KEY in folder.keys:
            raise ContractMismatch("the checkpoint has a map but no draft_vocab_size", field=MAP_KEY)
        return torch.arange(config.vocab_size)
    stored = folder.load(MAP_KEY)
    if stored.is_floating_point() or tuple(stored.shape) != (config.draft_vocab_size,):
        raise ContractMismatch(
            f"{stored.dtype} {list(stored.shape)}, expected {config.draft_vocab_size} integer ids",
            field=MAP_KEY,
        )
    ids = stored.to(torch.int64)
    outside = ids[(ids < 0) | (ids >= config.vocab_size)]
    if len(outside):
        raise ContractMismatch(
            f"target id {int(outside[0])} is outside the vocabulary of {config.vocab_size}", field=MAP_KEY
        )
    if len(ids.unique()) != len(ids):
        raise ContractMismatch("two drafter ids stand for the same target id", field=MAP_KEY)
    return ids


def fingerprint(path: Path) -> str:
    """sha256 (hex) over `config.json` and the bytes of all tensor files."""
    digest = hashlib.sha256((path / "config.json").read_bytes())
    for file in TensorFolder(path).files:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def save_checkpoint(
    path: Path, config: DraftCheckpointConfig, model: DraftModel, token_ids: torch.Tensor | None = None
) -> None:
    """Writes a folder that `read_draft_config` and `load_model` accept.

    Args:
        path: the folder, made when missing.
        config: must be the model's.
        model: the weights, saved in their own dtype.
        token_ids: [V_d] target ids (`d2t`), exactly when the config has a draft_vocab_size.
    """
    if (token_ids is None) != (config.draft_vocab_size is None):
        raise ValueError("token_ids belong to a config with draft_vocab_size")
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config_document(config), indent=2) + "\n")
    tensors = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    if token_ids is not None:
        tensors[MAP_KEY] = token_ids.to(torch.int64)
    save_file(tensors, path / SINGLE, metadata={"format": "pt"})


def save_compact(
    path: Path, config: DraftCheckpointConfig, model: DraftModel, token_ids: torch.Tensor | None = None
) -> None:
    """As `save_checkpoint`, in the fewest bytes: int8 tables, float16 for the rest."""
    save_checkpoint(path, config, model, token_ids)
    tensors = compacted(model.state_dict())
    if token_ids is not None:
        tensors[MAP_KEY] = token_ids.to(torch.int32)
    save_file(tensors, path / SINGLE, metadata={"format": "pt"})


def save_drafter(
    path: Path, config: DraftCheckpointConfig, model: DraftModel, token_ids: torch.Tensor | None
) -> None:
    """As `save_checkpoint`, beside the folder and then swapped in: it is never half written for long."""
    fresh, old = path.with_name(f".{path.name}.new"), path.with_name(f".{path.name}.old")
    for leftover in (fresh, old):
        shutil.rmtree(leftover, ignore_errors=True)
    save_checkpoint(fresh, config, model, token_ids)
    if path.exists():
        path.rename(old)
    fresh.rename(path)
    shutil.rmtree(old, ignore_errors=True)


def config_document(config: DraftCheckpointConfig) -> dict[str, Any]:
    """The `config.json` of a checkpoint."""
    dlite: dict[str, Any] = {
        "architecture_version": "dlite_v1",
        "model_role": "pivot_q_student",
        "chs_num_layers": len(config.target_layer_ids),
        "target_layer_ids": list(config.target_layer_ids),
        "sequential_head": "rnn",
        "sequential_rank": config.rank,
        "mask_token_id": config.mask_token_id,
        "anchor_group_size": config.anchor_group_size,
    }
    optional = {
        "variable_block": config.variable_block,
        "draft_vocab_size": config.draft_vocab_size,
        "target_fingerprint": config.target_fingerprint,
        "target_embedding_hash": config.target_embedding_hash,
    }
    dlite.update({name: value for name, value in optional.items() if value})
    return {
        "architectures": ["DLiteDraftModel"],
        "model_type": "qwen3",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "num_target_layers": config.num_target_layers,
        "block_size": config.block_size,
        "dlite_config": dlite,
    }
