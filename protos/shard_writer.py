"""Writes a folder of feature shards, whole files only: killed at any moment, it resumes behind the last."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save

from protos.errors import ContractMismatch, InvalidRequest
from protos.shard_manifest import (
    MANIFEST,
    ShardFile,
    ShardManifest,
    ShardTarget,
    check_files,
    read_manifest,
    write_atomically,
    write_manifest,
)
from protos.shards import DTYPES, CapturedSequence, pack_shard, shard_metadata


@dataclass(frozen=True)
class ShardSpec:
    """What a writer writes: the manifest's fixed part, and how large a file gets."""

    target: ShardTarget
    tapped_layers: tuple[int, ...]
    dtype: str = "float16"
    history: int = 0
    source_sha256: str = ""
    matrices: str = ""
    rows_per_shard: int = 8192


class ShardWriter:
    """Appends sequences to a folder; a killed writer resumes behind its last whole shard.

    Args:
        folder: made when missing.
        spec: must equal that of what the folder already holds.

    Raises:
        ContractMismatch: the folder holds shards of another spec.
    """

    def __init__(self, folder: Path, spec: ShardSpec) -> None:
        if spec.dtype not in DTYPES:
            raise InvalidRequest(f"{spec.dtype!r} is none of {sorted(DTYPES)}", field="dtype")
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._spec = spec
        self._pending: list[CapturedSequence] = []
        self._manifest = self._start()

    @property
    def manifest(self) -> ShardManifest:
        return self._manifest

    @property
    def num_written(self) -> int:
        """Sequences in whole shards: where a resumed writer goes on."""
        return self._manifest.num_sequences

    def append(self, sequence: CapturedSequence) -> None:
        """Takes one sequence; a shard is written when it is full.

        Raises:
            ContractMismatch: a feature does not fit the dtype.
        """
        dtype = DTYPES[self._spec.dtype]
        features = sequence.features.to("cpu", dtype)
        if not bool(torch.isfinite(features).all()):
            raise ContractMismatch(
                f"a feature of {float(sequence.features.abs().max()):.3g} does not fit {self._spec.dtype}; "
                "use float32",
                field="dtype",
            )
        self._pending.append(replace(sequence, features=features))
        if sum(len(one.features) for one in self._pending) >= self._spec.rows_per_shard:
            self._flush()

    def close(self) -> None:
        """Writes what is pending and marks the folder complete."""
        if self._pending:
            self._flush()
        self._manifest = self._manifest.model_copy(update={"complete": True})
        write_manifest(self._folder, self._manifest)

    def _start(self) -> ShardManifest:
        spec = self._spec
        fresh = ShardManifest(
            format="dlite-shards",
            version=1,
            target=spec.target,
            tapped_layers=spec.tapped_layers,
            dtype=spec.dtype,  # type: ignore[arg-type]
            history=spec.history,
            matrices=spec.matrices,  # type: ignore[arg-type]
            source_sha256=spec.source_sha256,
            complete=False,
            shards=(),
        )
        if not (self._folder / MANIFEST).exists():
            return fresh
        found = read_manifest(self._folder)
        for name in ("target", "tapped_layers", "dtype", "history", "matrices", "source_sha256"):
            if getattr(found, name) != getattr(fresh, name):
                raise ContractMismatch(
                    f"{self._folder} holds shards with {name} {getattr(found, name)!r}, not "
                    f"{getattr(fresh, name)!r}: use another folder",
                    field=name,
                )
        check_files(self._folder, found)
        return found.model_copy(update={"complete": False})

    def _flush(self) -> None:
        name = f"shard-{len(self._manifest.shards):05d}.safetensors"
        data = save(pack_shard(self._pending), shard_metadata(self._pending))
        write_atomically(self._folder / name, data)
        shard = ShardFile(
            file=name,
            num_sequences=len(self._pending),
            num_tokens=sum(len(one.token_ids) for one in self._pending),
            num_rows=sum(len(one.features) for one in self._pending),
            num_bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
        )
        self._pending.clear()
        self._manifest = self._manifest.model_copy(update={"shards": (*self._manifest.shards, shard)})
        write_manifest(self._folder, self._manifest)
