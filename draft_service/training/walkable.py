"""What a run has trained, in the form in which it can be walked, whatever net it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from draft_service.checkpoint import ARCHITECTURE, DraftCheckpointConfig
from draft_service.drafter import Drafter
from draft_service.model import DraftModel
from draft_service.proposal import DraftDescription
from draft_service.training.history_net import HistoryNet
from draft_service.training.history_walk import HistoryWalker
from draft_service.training.loop import Trained
from draft_service.training.preparation import Prepared
from draft_service.training.walk import Walk, WalkOptions, walk_all
from protos.shards import CapturedSequence


@dataclass(frozen=True, eq=False)
class ServedWalker:
    """A DLite drafter: the very `Drafter` that a service runs, on weights that are not on disk."""

    drafter: Drafter
    model: DraftModel

    def walk_all(self, sequences: Sequence[CapturedSequence], options: WalkOptions) -> Iterator[Walk]:
        return walk_all(self.drafter, sequences, options)


def walker_of(trained: Trained) -> ServedWalker | HistoryWalker:
    """The trained net with its part of the target."""
    prepared, model = trained.prepared, trained.model
    token_ids = prepared.token_ids
    if token_ids is None:
        token_ids = torch.arange(len(prepared.frozen.embedding))
    if isinstance(model, HistoryNet):
        return HistoryWalker(model, prepared.frozen, token_ids)
    assert isinstance(model, DraftModel)
    return ServedWalker(Drafter(model, prepared.frozen.embedding, token_ids, _description(prepared)), model)


def _description(prepared: Prepared) -> DraftDescription:
    config: DraftCheckpointConfig = prepared.config
    return DraftDescription(
        drafter_kind=ARCHITECTURE,
        model="in training",
        fingerprint="",
        embedding_hash=config.target_embedding_hash,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_target_layers=config.num_target_layers,
        tapped_layers=config.target_layer_ids,
        block_size=config.block_size,
        anchor_group_size=config.anchor_group_size,
        dtype="float32",
    )
