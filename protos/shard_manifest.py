"""The manifest of a folder of feature shards: what was captured, of which target, and the files' hashes.

Imports no torch. Every field is required and checked on load: a folder captured from another target,
with other layers or of a later format version is refused by name, never guessed at.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from protos.errors import ContractMismatch, NotFound

MANIFEST = "manifest.json"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, protected_namespaces=())


class ShardTarget(_Record):
    """The target whose states were captured."""

    model: str
    fingerprint: str = Field(min_length=1)
    embedding_hash: str = Field(min_length=1)
    tokenizer_hash: str
    vocab_size: int = Field(ge=1)
    hidden_size: int = Field(ge=1)
    num_layers: int = Field(ge=1)


class ShardFile(_Record):
    """One file: its counts and its bytes."""

    file: str = Field(min_length=1, pattern=r"^[^/\\]+$")
    num_sequences: int = Field(ge=1)
    num_tokens: int = Field(ge=1)
    num_rows: int = Field(ge=0)
    num_bytes: int = Field(ge=1)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class ShardManifest(_Record):
    """A folder of shards.

    Attributes:
        tapped_layers: the m feature ids of every row, ascending; the last one is the target's last
            layer, whose feature is the state from which the target's logits follow.
        dtype: of the features.
        matrices: "bfloat16" when the products of the capture were of that type, "" for the model's own.
        history: rows kept before a response's first pivot, where the prompt is that long.
        source_sha256: of what was captured (the file of token sequences), so that a resumed export
            cannot mix two sources; "" for text generated on the fly.
        complete: False while the writer has more to come.
    """

    format: Literal["dlite-shards"]
    version: Literal[1]
    target: ShardTarget
    tapped_layers: tuple[int, ...]
    dtype: Literal["float16", "float32", "float64"]
    history: int = Field(ge=0)
    matrices: Literal["", "bfloat16"]
    source_sha256: str
    complete: bool
    shards: tuple[ShardFile, ...]

    @field_validator("tapped_layers", "shards", mode="before")
    @classmethod
    def _lists_are_tuples(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _check(self) -> ShardManifest:
        ids, last = self.tapped_layers, self.target.num_layers - 1
        if not ids or list(ids) != sorted(set(ids)) or ids[0] < 0 or ids[-1] != last:
            raise ValueError(f"tapped_layers {list(ids)} must ascend within the target and end with {last}")
        names = [shard.file for shard in self.shards]
        if len(set(names)) != len(names):
            raise ValueError("a shard file is listed twice")
        return self

    @property
    def num_sequences(self) -> int:
        return sum(shard.num_sequences for shard in self.shards)

    @property
    def num_rows(self) -> int:
        return sum(shard.num_rows for shard in self.shards)


def read_manifest(folder: Path) -> ShardManifest:
    """The manifest of a folder.

    Raises:
        NotFound: there is none.
        ContractMismatch: it is damaged, of another version, or a field is missing, unknown or impossible.
    """
    file = folder / MANIFEST
    try:
        text = file.read_text()
    except OSError as error:
        raise NotFound(f"{folder} has no {MANIFEST}: not a folder of shards", field="data") from error
    try:
        return ShardManifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or MANIFEST
        raise ContractMismatch(f"{file}: {field}: {first['msg']}", field=field) from error


def write_manifest(folder: Path, manifest: ShardManifest) -> None:
    """Replaces the manifest in one step."""
    write_atomically(folder / MANIFEST, (json.dumps(manifest.model_dump(), indent=1) + "\n").encode())


def write_atomically(file: Path, data: bytes) -> None:
    """The file has its old content or the new one, never a part; survives a power cut once it returns."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    with temporary.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(file)


def file_sha256(file: Path) -> str:
    """Hex sha256 of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_files(folder: Path, manifest: ShardManifest) -> None:
    """Compares every file with its size and hash.

    Raises:
        ContractMismatch: a file is missing or differs, naming it.
    """
    for shard in manifest.shards:
        file = folder / shard.file
        if not file.is_file():
            raise ContractMismatch(f"{file} is missing", field=shard.file)
        if file.stat().st_size != shard.num_bytes or file_sha256(file) != shard.sha256:
            raise ContractMismatch(
                f"{file} is not what the manifest says; export it again or copy it again", field=shard.file
            )
