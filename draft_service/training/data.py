"""Anchors gathered from shards. For an anchor with pivot row r (see rows.py):

    anchor = labels[r];  proposal j should be labels[r + j], whose law is row r + j

m tapped layers that the drafter reads, D width, n gathered anchors, k proposals.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch

from draft_service.training.rows import Rows, read_rows
from protos.errors import ContractMismatch, InvalidRequest
from protos.shard_manifest import ShardManifest
from protos.shards import open_shards

# (features [N, m', D] of a file, rows [n] in it) -> what is wanted of them.
Take = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, eq=False)
class AnchorBatch:
    """n anchors with k positions each.

    Attributes:
        features: [n, m, D] float32 of the pivots.
        tokens: [n, 1 + k] int64, the anchor and the text after it.
        hidden: [n, k, D] float32, the target's last state, which decides proposal j.
        log_normalisers: [n, k] float32.
        greedy: [n, k] int64 target ids.
        valid: [n, k] bool; beyond the text the other fields repeat its end.
    """

    features: torch.Tensor
    tokens: torch.Tensor
    hidden: torch.Tensor
    log_normalisers: torch.Tensor
    greedy: torch.Tensor
    valid: torch.Tensor

    def to(self, device: torch.device) -> AnchorBatch:
        return AnchorBatch(*(getattr(self, name).to(device) for name in self.__dataclass_fields__))


@dataclass(frozen=True, eq=False)
class WindowBatch:
    """The rows that a teacher sees before the pivots of n anchors: those of tokens a-W .. a-2.

    Attributes:
        features: [n, W - 1, 3, D] float32 of the first, the middle and the last layer.
        valid: [n, W - 1] bool; beyond the stored text the other fields repeat its first row.
        positions: [n, W - 1] int64, absolute.
        anchors: [n] int64, absolute position a of each anchor.
    """

    features: torch.Tensor
    valid: torch.Tensor
    positions: torch.Tensor
    anchors: torch.Tensor

    def to(self, device: torch.device) -> WindowBatch:
        return WindowBatch(*(getattr(self, name).to(device) for name in self.__dataclass_fields__))


@dataclass(frozen=True, eq=False)
class HistoryBatch:
    """All stored rows of the T texts of n anchors, for nets that keep a history. L rows at most.

    Attributes:
        features: [T, L, m, D] float32; shorter texts repeat their last row.
        positions: [T, L] int64, absolute.
        texts: [n] which of the T texts an anchor is in.
        visible: [n, L] bool, rows up to an anchor's pivot.
        anchors: [n] int64, absolute position a of each anchor.
    """

    features: torch.Tensor
    positions: torch.Tensor
    texts: torch.Tensor
    visible: torch.Tensor
    anchors: torch.Tensor

    def to(self, device: torch.device) -> HistoryBatch:
        return HistoryBatch(*(getattr(self, name).to(device) for name in self.__dataclass_fields__))


class TrainingData:
    """One or more folders of shards of one target.

    Args:
        folders: of shards.
        layer_ids: the tapped layers to read; empty means all.
        held_out_fraction: of the prompts.

    Raises:
        NotFound, ContractMismatch: a folder is no folder of shards, or belongs to another target.
        InvalidRequest: a layer was not captured, or nothing is left to train on.
    """

    def __init__(
        self, folders: Sequence[Path], layer_ids: Sequence[int] = (), held_out_fraction: float = 0.05
    ) -> None:
        opened = [open_shards(folder) for folder in folders]
        self.manifests = tuple(manifest for manifest, _ in opened)
        _check_same_target(self.manifests, folders)
        shards = [shard for _, found in opened for shard in found]
        self._features = [shard.features for shard in shards]
        sizes = torch.tensor([len(features) for features in self._features])
        self._ends = sizes.cumsum(0)
        self._starts = self._ends - sizes
        captured = self.manifests[0].tapped_layers
        self.layer_ids = tuple(layer_ids) or captured
        self._layers = _indices(self.layer_ids, captured)
        self.rows: Rows = read_rows(shards, held_out_fraction)
        self.anchors = torch.nonzero(self.rows.is_pivot & ~self.rows.held_out)[:, 0]
        self.held_out_anchors = torch.nonzero(self.rows.is_pivot & self.rows.held_out)[:, 0]
        if not len(self.anchors):
            raise InvalidRequest("no anchor to train on: no response has two tokens", field="data")

    def __len__(self) -> int:
        return len(self.rows)

    def gather(self, pivots: torch.Tensor, num_proposals: int) -> AnchorBatch:
        """Anchors by their pivot rows [n]."""
        steps = torch.arange(1, num_proposals + 1)
        left = self.rows.rows_left[pivots][:, None]  # [n, 1]
        deciding = pivots[:, None] + torch.minimum(steps[None, :], left - 1)  # [n, k]
        columns = self.rows
        return AnchorBatch(
            features=self.read(pivots, self._layers),
            tokens=torch.cat([columns.labels[pivots][:, None], columns.labels[deciding]], dim=1),
            hidden=self.read_last(deciding.reshape(-1)).unflatten(0, (len(pivots), num_proposals)),
            log_normalisers=columns.log_normalisers[deciding],
            greedy=columns.greedy[deciding],
            valid=steps[None, :] < left,
        )

    def window(self, pivots: torch.Tensor, width: int) -> WindowBatch:
        """What a teacher with window W = `width` sees before the pivot rows [n]."""
        back = torch.arange(width - 1, 0, -1)  # W - 1 .. 1 rows before the pivot
        before = self.rows.rows_before[pivots][:, None]  # [n, 1]
        rows = pivots[:, None] - torch.minimum(back[None, :], before)  # [n, W - 1]
        layers = [self._layers[0], self._layers[len(self._layers) // 2], self._layers[-1]]
        features = self.read(rows.reshape(-1), layers).unflatten(0, tuple(rows.shape))
        positions = self.rows.positions
        return WindowBatch(features, back[None, :] <= before, positions[rows], positions[pivots] + 1)

    def history(self, pivots: torch.Tensor, most_rows: int) -> HistoryBatch:
        """All rows up to the pivots [n], but at most `most_rows` before the last pivot of a text."""
        columns = self.rows
        starts, texts = torch.unique(pivots - columns.rows_before[pivots], return_inverse=True)  # [T], [n]
        ends = torch.zeros_like(starts).scatter_reduce(0, texts, pivots, "amax")  # [T] last pivot
        starts = torch.maximum(starts, ends - (most_rows - 1))
        length = int((ends - starts).max()) + 1
        rows = torch.minimum(starts[:, None] + torch.arange(length)[None, :], ends[:, None])  # [T, L]
        own = starts[texts][:, None] + torch.arange(length)[None, :]  # [n, L]
        return HistoryBatch(
            features=self.read(rows.reshape(-1), self._layers).unflatten(0, tuple(rows.shape)),
            positions=columns.positions[rows],
            texts=texts,
            visible=own <= pivots[:, None],
            anchors=columns.positions[pivots] + 1,
        )

    def with_layers(self, layer_ids: Sequence[int]) -> Self:
        """The same rows, read with other layers; empty means all."""
        other = copy.copy(self)
        captured = self.manifests[0].tapped_layers
        other.layer_ids = tuple(layer_ids) or captured
        other._layers = _indices(other.layer_ids, captured)
        return other

    def read(self, rows: torch.Tensor, layers: Sequence[int] = ()) -> torch.Tensor:
        """Features [n, m', D] float32 of the captured layers with these indices; empty means all."""
        _, num_layers, width = self._features[0].shape
        wanted = torch.tensor(list(layers) or range(num_layers))
        return self._fetch(
            rows,
            lambda features, local: features[local[:, None], wanted],
            (len(rows), len(wanted), width),
        )

    def read_last(self, rows: torch.Tensor) -> torch.Tensor:
        """The target's last state [n, D] float32."""
        width = self._features[0].shape[2]
        return self._fetch(rows, lambda features, local: features[local, -1], (len(rows), width))

    def _fetch(self, rows: torch.Tensor, take: Take, shape: tuple[int, ...]) -> torch.Tensor:
        out = torch.empty(shape)
        files = torch.searchsorted(self._ends, rows, right=True)
        for file in files.unique().tolist():
            where = torch.nonzero(files == file)[:, 0]
            out[where] = take(self._features[file], rows[where] - self._starts[file]).to(torch.float32)
        return out


def _check_same_target(manifests: Sequence[ShardManifest], folders: Sequence[Path]) -> None:
    first = manifests[0]
    for manifest, folder in zip(manifests, folders, strict=True):
        for field in ("target", "tapped_layers"):
            if getattr(manifest, field) != getattr(first, field):
                raise ContractMismatch(
                    f"{folder} and {folders[0]} differ in {field}: captured from different targets",
                    field=field,
                )


def _indices(wanted: Sequence[int], captured: Sequence[int]) -> list[int]:
    missing = sorted(set(wanted) - set(captured))
    if missing:
        raise InvalidRequest(
            f"layer {missing[0]} was not captured; the shards have {list(captured)}", field="target_layer_ids"
        )
    return [list(captured).index(layer) for layer in wanted]
