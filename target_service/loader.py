"""Loads a target from a folder or a hub name, and refuses by name what we cannot serve exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from protos.errors import ContractMismatch, InvalidRequest, NotFound

UNSUPPORTED_ROPE = ("dynamic", "longrope")
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class LoadedTarget:
    """A model in eval mode and what its folder says about generation."""

    model: PreTrainedModel
    folder: Path
    eos_ids: frozenset[int]
    temperature: float | None
    top_p: float | None
    top_k: int | None


def resolve_folder(name: str, trust_remote_code: bool = False) -> Path:
    """A local folder, or the snapshot of a hub model; its code comes along only if it is trusted.

    Raises:
        NotFound: neither.
    """
    if Path(name).is_dir():
        return Path(name)
    if name.startswith((".", "/")) or name.count("/") != 1:
        raise NotFound(f"{name} is no folder and no hub name (owner/model)", field="target")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        patterns = ["*.json", "*.safetensors", "*.jinja", "*.txt"]
        if trust_remote_code:
            patterns.append("*.py")
        return Path(snapshot_download(name, allow_patterns=patterns))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise NotFound(f"cannot fetch {name} from the hub: {error}", field="target") from error


def refuse_unsupported(config: Any) -> None:
    """Refuses architectures whose text we could not keep exact.

    Raises:
        ContractMismatch: sliding-window or mixed attention, RoPE that depends on batch
            neighbours, quantised weights.
    """
    name = config.model_type
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise ContractMismatch(f"{name}: layer types {sorted(kinds)}; only full attention", field="target")
    window = getattr(config, "sliding_window", None)
    if window and getattr(config, "use_sliding_window", True):
        raise ContractMismatch(f"{name}: sliding-window attention ({window})", field="target")
    rope = getattr(config, "rope_parameters", None) or {}
    kind = rope.get("rope_type", "default")
    if kind in UNSUPPORTED_ROPE:
        raise ContractMismatch(
            f"{name}: RoPE type {kind!r} rescales with the longest text in a batch, so a neighbour "
            "would change a request's text",
            field="target",
        )
    if getattr(config, "quantization_config", None):
        raise ContractMismatch(f"{name}: quantised weights are not supported", field="target")


def read_config(folder: Path, trust_remote_code: bool = False) -> Any:
    """The model's config. Code that the folder brings runs only if it is trusted.

    Raises:
        ContractMismatch: unsupported, no readable config.json, or one that needs code of the folder.
    """
    try:
        # Said explicitly: unset, the library asks on the terminal.
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        raise ContractMismatch(f"{folder}: no usable config.json ({error})", field="target") from error
    refuse_unsupported(config)
    return config


def load(name: str, dtype: str, device: str, trust_remote_code: bool = False) -> LoadedTarget:
    """Loads the model.

    Args:
        name: folder or hub name.
        dtype: key of `DTYPES`.
        device: torch device.
        trust_remote_code: run code that the folder brings.
    """
    if dtype not in DTYPES:
        raise InvalidRequest(f"unknown dtype {dtype!r}, one of {sorted(DTYPES)}", field="dtype")
    folder = resolve_folder(name, trust_remote_code)
    read_config(folder, trust_remote_code)
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder, dtype=DTYPES[dtype], trust_remote_code=trust_remote_code
    )
    torch.nn.Module.to(model, device)
    model.eval().requires_grad_(False)
    return from_model(model, folder)


def from_model(model: PreTrainedModel, folder: Path) -> LoadedTarget:
    """Reads the generation defaults of a loaded model."""
    refuse_unsupported(model.config)
    generation: GenerationConfig = model.generation_config
    eos = generation.eos_token_id
    ids: Sequence[int] = [] if eos is None else [eos] if isinstance(eos, int) else list(eos)
    sampled = bool(generation.do_sample)
    return LoadedTarget(
        model=model,
        folder=folder,
        eos_ids=frozenset(ids),
        temperature=generation.temperature if sampled else None,
        top_p=generation.top_p if sampled else None,
        top_k=generation.top_k if sampled else None,
    )


def check_tapped_layers(layer_ids: Sequence[int], num_layers: int) -> tuple[int, ...]:
    """Feature ids in order.

    Raises:
        InvalidRequest: fewer than two, repeated, unordered or not a layer of the model.
    """
    ids = tuple(layer_ids)
    if len(ids) < 2 or list(ids) != sorted(set(ids)) or ids[0] < 0 or ids[-1] >= num_layers:
        raise InvalidRequest(
            f"{list(ids)}: expected two or more ascending layer ids in [0, {num_layers})",
            field="tapped_layers",
        )
    return ids
