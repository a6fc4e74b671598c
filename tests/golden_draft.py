"""The golden drafters and their recorded inputs, for tests of the draft service."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from draft_service.drafter import Drafter
from draft_service.loader import load_drafter
from draft_service.proposal import DraftItem, DraftMode

torch.set_num_threads(1)

GOLDEN = Path(__file__).parent / "golden"
TARGET = GOLDEN / "target_qwen3"
DRAFTS = ("draft_dlite_v1_g1", "draft_dlite_v1_g2", "draft_trained_g1")
NUM_PROMPTS = 6
K = 7
# float32 summation order; see the tolerances of the golden set.
ATOL, RTOL = 1e-4, 1e-5


@lru_cache
def drafter(name: str) -> Drafter:
    return load_drafter(GOLDEN / name, TARGET)


@lru_cache
def tensors(name: str) -> dict[str, torch.Tensor]:
    return load_file(GOLDEN / f"{name}.safetensors")


@lru_cache
def records(name: str) -> dict[str, Any]:
    return json.loads((GOLDEN / f"{name}.json").read_text())


def group_size(name: str) -> int:
    return records(name)["anchor_group_size"]


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=ATOL, rtol=RTOL)


@dataclass(frozen=True, eq=False)
class GoldenRound:
    """A recorded round: its item and what the released code answered."""

    item: DraftItem
    hidden: torch.Tensor  # [K, D]
    proposals: tuple[int, ...]


def item_for(
    committed: Sequence[int],
    features: torch.Tensor,
    group: int,
    k: int = K,
    mode: DraftMode = DraftMode.GREEDY,
) -> DraftItem:
    """The item whose anchor is the last committed token."""
    return DraftItem(
        "golden",
        tuple(committed[-group:]),
        features,
        len(committed) - 1,
        k,
        mode,
        bytes(range(16)),
        1.0,
    )


def first_rounds(name: str) -> list[GoldenRound]:
    """The round after prefill of each prompt."""
    data, group = tensors(name), group_size(name)
    rounds = []
    for i in range(NUM_PROMPTS):
        committed = [*data[f"p{i}.prompt_ids"].tolist(), int(data[f"p{i}.prefill_last_logits"].argmax())]
        item = item_for(committed, data[f"p{i}.pivot_features"], group)
        rounds.append(
            GoldenRound(item, data[f"p{i}.backbone_hidden"], tuple(data[f"p{i}.proposals"].tolist()))
        )
    return rounds


def traced_rounds(name: str) -> list[GoldenRound]:
    """The first rounds of the recorded runs with the full verify block."""
    data, group, rounds = tensors(name), group_size(name), []
    for i, prompt in enumerate(records(name)["prompts"]):
        run = prompt["spec"]["v8"]
        features, hidden = data[f"p{i}.trace_pivot_features"], data[f"p{i}.trace_backbone_hidden"]
        for step, trace in enumerate(run["trace"][: len(features)]):
            committed = run["output_ids"][: trace["start"] + 1]
            item = item_for(committed, features[step], group)
            rounds.append(GoldenRound(item, hidden[step], tuple(trace["proposals"])))
    return rounds


def change_config(folder: Path, name: str, value: Any = None, *, drop: bool = False) -> None:
    """Changes or drops a field of a config.json; "dlite_config.x" is the field x inside."""
    file = folder / "config.json"
    document = json.loads(file.read_text())
    fields = document
    if name.startswith("dlite_config."):
        fields, name = document["dlite_config"], name.removeprefix("dlite_config.")
    if drop:
        del fields[name]
    else:
        fields[name] = value
    file.write_text(json.dumps(document))
