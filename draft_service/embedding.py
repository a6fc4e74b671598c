"""The target's token embedding: all that the draft service reads of the target."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from draft_service.tensor_folder import TensorFolder
from protos.errors import ContractMismatch

EMBEDDING_KEY = "model.embed_tokens.weight"
_HASH_ROWS = 8192


def load_embedding(target: Path) -> torch.Tensor:
    """The embedding [V, D] as float32, from a target folder (single or sharded safetensors).

    Raises:
        InvalidRequest: the folder has no safetensors.
        ContractMismatch: it has no such tensor, or one that is no usable [V, D] matrix.
    """
    stored = TensorFolder(target).load(EMBEDDING_KEY)
    if stored.dim() != 2 or not stored.is_floating_point():
        raise ContractMismatch(
            f"expected a float matrix [V, D], found {stored.dtype} {list(stored.shape)}", field=EMBEDDING_KEY
        )
    embedding = stored.to(torch.float32)
    if not bool(embedding.any()):
        raise ContractMismatch(
            f"the target's embedding {list(stored.shape)} is all zero", field=EMBEDDING_KEY
        )
    return embedding


def embedding_hash(embedding: torch.Tensor) -> str:
    """sha256 (hex) over the float32 little-endian bytes of the [V, D] matrix."""
    digest = hashlib.sha256()
    for rows in embedding.split(_HASH_ROWS):
        values = rows.detach().to("cpu", torch.float32).contiguous()
        digest.update(values.view(torch.uint8).numpy().data)
    return digest.hexdigest()
