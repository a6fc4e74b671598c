"""What training reads of the target's folder: embedding, LM head, and layers to start from.

V vocabulary, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from draft_service.embedding import EMBEDDING_KEY, embedding_hash, load_embedding
from draft_service.tensor_folder import TensorFolder
from protos.errors import ContractMismatch
from protos.shard_manifest import ShardTarget

LM_HEAD_KEY = "lm_head.weight"
FINAL_NORM_KEY = "model.norm.weight"


@dataclass(frozen=True, eq=False)
class TargetWeights:
    """Float32 tensors of a target folder.

    Attributes:
        embedding: [V, D].
        lm_head: [V, D]; the embedding itself where they are tied.
        folder: for single layers.
    """

    embedding: torch.Tensor
    lm_head: torch.Tensor
    folder: TensorFolder

    def layer(self, index: int) -> dict[str, torch.Tensor]:
        """The tensors of one decoder layer, without their prefix, float32."""
        prefix = f"model.layers.{index}."
        names = [key for key in self.folder.keys if key.startswith(prefix)]
        return {name.removeprefix(prefix): self.folder.load(name).to(torch.float32) for name in names}

    def final_norm(self) -> torch.Tensor | None:
        """The weight [D] of the norm before the LM head, where it has the usual name."""
        if FINAL_NORM_KEY not in self.folder.keys:
            return None
        return self.folder.load(FINAL_NORM_KEY).to(torch.float32)


def load_target_weights(path: Path, expected: ShardTarget) -> TargetWeights:
    """Reads a target folder.

    Raises:
        InvalidRequest, ContractMismatch: it is no model folder, or not the one the shards come from.
    """
    folder = TensorFolder(path)
    embedding = load_embedding(path)
    if embedding_hash(embedding) != expected.embedding_hash:
        raise ContractMismatch(
            f"{path} is not the target that the data was captured from ({expected.model})",
            field=EMBEDDING_KEY,
        )
    lm_head = embedding
    if LM_HEAD_KEY in folder.keys:
        lm_head = folder.load(LM_HEAD_KEY).to(torch.float32)
    return TargetWeights(embedding, lm_head, folder)
