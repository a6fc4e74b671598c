"""Anchors gathered from shards. For an anchor with pivot row r (see rows.py):

    anchor = labels[r];  proposal j should be labels[r + j], whose law is row r + j

m tapped layers that the drafter reads, D width, n gathered anchors, k proposals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

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
            features=self.read(pivots)[:, self._layers],
            tokens=torch.cat([columns.labels[pivots][:, None], columns.labels[deciding]], dim=1),
            hidden=self.read_last(deciding.reshape(-1)).unflatten(0, (len(pivots), num_proposals)),
            log_normalisers=columns.log_normalisers[deciding],
            greedy=columns.greedy[deciding],
            valid=steps[None, :] < left,
        )

    def read(self, rows: torch.Tensor) -> torch.Tensor:
        """Features of all captured layers [n, m', D] float32."""
        shape = self._features[0].shape[1:]
        return self._fetch(rows, lambda features, local: features[local], (len(rows), *shape))

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
