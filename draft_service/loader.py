"""From folders to a drafter that is ready to serve."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from draft_service.checkpoint import ARCHITECTURE, DraftCheckpointConfig, read_draft_config
from draft_service.config import DraftConfig, Matrices
from draft_service.drafter import Drafter
from draft_service.embedding import embedding_hash, load_embedding
from draft_service.matrices import chosen, use
from draft_service.proposal import DraftDescription, ProposesTokens
from draft_service.replay import ReplayDrafter, ReplayOptions, read_recordings
from draft_service.weights import fingerprint, load_model, load_token_ids
from protos.errors import ContractMismatch, InvalidRequest

FLOAT32_BYTES = 4


def load_drafter(
    checkpoint: Path,
    target: Path,
    overrides: Sequence[str] = (),
    matrices: Matrices = "float32",
    device: str = "cpu",
) -> Drafter:
    """Loads a dlite_v1 checkpoint and the embedding of its target, in float32.

    Args:
        overrides: "field=value" for fields that the checkpoint leaves out.
        matrices: what its products are computed in.
        device: torch's name of what computes.

    Raises:
        InvalidRequest: a folder is not there, no such device, or no such kernel.
        ContractMismatch: the checkpoint is damaged or does not belong to this target.
    """
    _check_device(device)
    config = read_draft_config(checkpoint, overrides)
    _check_target(config, target)
    embedding = load_embedding(target)
    digest = embedding_hash(embedding)
    if config.target_embedding_hash not in ("", digest):
        raise ContractMismatch(
            f"the drafter was trained on an embedding with hash {config.target_embedding_hash[:12]}, "
            f"{target} has {digest[:12]}",
            field="dlite_config.target_embedding_hash",
        )
    description = describe(config, checkpoint, digest)
    model = load_model(checkpoint, config)
    use(model, chosen(matrices, device))
    token_ids = load_token_ids(checkpoint, config)
    return Drafter(model.to(device), embedding.to(device), token_ids.to(device), description)


def describe(config: DraftCheckpointConfig, checkpoint: Path, digest: str) -> DraftDescription:
    """What the service says about a checkpoint; `digest` is the target's embedding hash."""
    return DraftDescription(
        drafter_kind=ARCHITECTURE,
        model=checkpoint.name,
        fingerprint=fingerprint(checkpoint),
        embedding_hash=digest,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_target_layers=config.num_target_layers,
        tapped_layers=config.target_layer_ids,
        block_size=config.block_size,
        anchor_group_size=config.anchor_group_size,
        dtype="float32",
        trained_for_fingerprint=config.target_fingerprint,
        variable_block=config.variable_block,
        kv_bytes_per_token=2 * config.num_layers * config.num_kv_heads * config.head_dim * FLOAT32_BYTES,
        notes=config.notes,
    )


def _check_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was built for a device
        raise InvalidRequest(f"{device!r} cannot be used: {error}", field="device") from error


def _check_target(config: DraftCheckpointConfig, target: Path) -> None:
    found = read_target_config(target)
    wanted = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_target_layers,
    }
    for field, value in wanted.items():
        if found.get(field) != value:
            raise ContractMismatch(
                f"the drafter was made for a target with {field} {value}, {target} has {found.get(field)}: "
                "use the drafter's own target",
                field=field,
            )


def read_target_config(target: Path) -> dict[str, Any]:
    """`config.json` of a target folder.

    Raises:
        ContractMismatch: it is not there or no JSON object.
    """
    file = target / "config.json"
    try:
        document = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ContractMismatch(f"cannot read the target's {file}: {error}", field="target") from error
    if not isinstance(document, dict):
        raise ContractMismatch(f"{file} is not a JSON object", field="target")
    return document


def set_threads(num_threads: int | None) -> int:
    """Sets torch's threads (None leaves them) and returns how many there are."""
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    return torch.get_num_threads()


def open_drafter(config: DraftConfig) -> ProposesTokens:
    """The drafter that a config names.

    Raises:
        InvalidRequest, ContractMismatch: as `load_drafter` and `read_recordings`.
    """
    if config.drafter is not None and config.target is not None:
        return load_drafter(config.drafter, config.target, config.overrides, config.matrices, config.device)
    assert config.replay is not None
    vocab_size, digest = 0, ""
    if config.target is not None:
        vocab_size = int(read_target_config(config.target)["vocab_size"])
        digest = embedding_hash(load_embedding(config.target))
    options = ReplayOptions(config.acceptance, config.compute_ms, config.replay_seed, vocab_size, digest)
    return ReplayDrafter(read_recordings(config.replay), options)
