"""What makes an item of a drafter wrong; one item's fault never touches its neighbours."""

from __future__ import annotations

import math

import torch

from draft_service.proposal import DraftItem, DraftMode, Refusal
from protos.noise import KEY_BYTES

_NOISY = (DraftMode.COUPLED, DraftMode.REJECTION)
# Most entries of a truncated law: 64 proposals of 1,024 entries stay far below 1 MiB.
MAX_LAW_ENTRIES = 1024
# Positions are hashed as unsigned 64-bit; the limit leaves room for position + k.
MAX_POSITION = 2**62


def check_round(item: DraftItem, max_k: int) -> Refusal | None:
    """Checks what every drafter needs: k, position, mode, key, temperature."""
    if not 1 <= item.k <= max_k:
        return Refusal("k", f"{item.k} proposals asked for, this drafter gives 1 to {max_k}")
    if not 0 <= item.position < MAX_POSITION:
        return Refusal("position", f"{item.position} is not a position")
    if item.mode in _NOISY:
        if len(item.key) != KEY_BYTES:
            return Refusal("sampling_key", f"{len(item.key)} bytes, expected {KEY_BYTES}")
        if not (math.isfinite(item.temperature) and item.temperature > 0):
            return Refusal(
                "temperature", f"{item.temperature} is not a temperature above 0; use greedy for 0"
            )
    if item.mode is DraftMode.REJECTION and not 1 <= item.max_law_entries <= MAX_LAW_ENTRIES:
        return Refusal("max_law_entries", f"{item.max_law_entries} is not in [1, {MAX_LAW_ENTRIES}]")
    return None


def check_tokens(item: DraftItem, group_size: int, vocab_size: int) -> Refusal | None:
    """Checks the recent tokens against G and V."""
    count = len(item.recent_tokens)
    if not 1 <= count <= min(group_size, item.position + 1):
        return Refusal(
            "recent_tokens",
            f"{count} tokens at position {item.position}, expected 1 to {min(group_size, item.position + 1)}",
        )
    for token in item.recent_tokens:
        if not 0 <= token < vocab_size:
            return Refusal("recent_tokens", f"token {token} is outside the vocabulary of {vocab_size}")
    return None


def check_features(features: torch.Tensor | None, shape: tuple[int, int]) -> Refusal | None:
    """Checks pivot features against [m, D] float32, all finite."""
    if features is None:
        return Refusal("features", f"missing, expected {list(shape)}")
    if tuple(features.shape) != shape:
        return Refusal("features.shape", f"{list(features.shape)}, expected {list(shape)}")
    if features.dtype != torch.float32:
        return Refusal("features.dtype", f"{features.dtype}, expected float32")
    if not bool(torch.isfinite(features).all()):
        return Refusal("features.data", "not all values are finite")
    return None
