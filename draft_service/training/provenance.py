"""What a drafter was made of, for the run's folder and the model card."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from draft_service.training.data import TrainingData
from draft_service.training.recipe import Recipe


def provenance(recipe: Recipe, data: TrainingData, start_fingerprint: str) -> dict[str, Any]:
    """Everything that determines the weights, as JSON: recipe, target, shards by hash, counts, versions."""
    return {
        "recipe": recipe.model_dump(mode="json"),
        "start": start_fingerprint,
        "target": data.manifests[0].target.model_dump(),
        "target_layer_ids": list(data.layer_ids),
        "data": [
            {
                "shards_sha256": hashlib.sha256("".join(s.sha256 for s in one.shards).encode()).hexdigest(),
                "source_sha256": one.source_sha256,
                "num_sequences": one.num_sequences,
                "num_rows": one.num_rows,
            }
            for one in data.manifests
        ],
        "num_anchors": len(data.anchors),
        "num_held_out_anchors": len(data.held_out_anchors),
        "torch": torch.__version__,
    }
