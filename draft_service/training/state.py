"""A run's state on disk: weights, their average, the optimiser's moments and the step, in one file.

There is no random state to keep: data order and block sizes are functions of recipe and step
(schedule.py). The file is replaced as a whole, so a kill at any moment leaves the old or the new one.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from draft_service.training.trainer import Trainer
from protos.errors import ContractMismatch
from protos.shard_manifest import write_atomically

STATE_FILE = "state.safetensors"
_MOMENTS = ("exp_avg", "exp_avg_sq")


def save_state(folder: Path, trainer: Trainer, recipe_digest: str) -> None:
    """Replaces the state in a run's folder."""
    tensors = {}
    for name, value in trainer.model.named_parameters():
        tensors[f"model.{name}"] = value.detach()
        tensors[f"average.{name}"] = trainer.average[name]
        moments = trainer.optimiser.state.get(value, {})
        for moment in _MOMENTS:
            if moment in moments:
                tensors[f"{moment}.{name}"] = moments[moment]
        if "step" in moments and int(moments["step"]) != trainer.step:
            tensors[f"updates.{name}"] = moments["step"]
    metadata = {"step": str(trainer.step), "recipe": recipe_digest}
    data = save({name: value.cpu().contiguous() for name, value in tensors.items()}, metadata)
    write_atomically(folder / STATE_FILE, data)


def restore_state(folder: Path, trainer: Trainer, recipe_digest: str) -> bool:
    """Puts a trainer where the saved one was; False when nothing is saved.

    Raises:
        ContractMismatch: the state is damaged, or of another recipe or other data.
    """
    file = folder / STATE_FILE
    if not file.exists():
        return False
    try:
        with safe_open(file, framework="pt") as opened:
            metadata = opened.metadata() or {}
            if metadata.get("recipe") != recipe_digest:
                raise ContractMismatch(
                    f"{folder} was begun with another recipe or other data; use another --out, or start it "
                    "from these weights with --init-from",
                    field="--out",
                )
            step = int(metadata["step"])
            for name, value in trainer.model.named_parameters():
                _restore(opened, name, value, trainer, step)
    except (OSError, SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise ContractMismatch(f"{file} is damaged: {error}", field=STATE_FILE) from error
    trainer.step = step
    return True


@torch.no_grad()
def _restore(opened: safe_open, name: str, value: torch.nn.Parameter, trainer: Trainer, step: int) -> None:
    value.copy_(opened.get_tensor(f"model.{name}"))
    trainer.average[name].copy_(opened.get_tensor(f"average.{name}"))
    keys = opened.keys()
    if step == 0 or f"{_MOMENTS[0]}.{name}" not in keys:
        return  # a weight that was frozen until now
    moments = {key: opened.get_tensor(f"{key}.{name}").to(value.device) for key in _MOMENTS}
    # Fewer updates than steps: frozen for some of them.
    updates = opened.get_tensor(f"updates.{name}") if f"updates.{name}" in keys else torch.tensor(float(step))
    trainer.optimiser.state[value] = {"step": updates, **moments}


def digest_of(document: object) -> str:
    """Hex digest of what determines a run's weights."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
