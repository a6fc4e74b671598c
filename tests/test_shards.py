"""Shards: what is written is read, an interrupted writer goes on, and what does not belong is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from protos import shard_manifest
from protos.errors import ContractMismatch, InvalidRequest, NotFound
from protos.shard_manifest import MANIFEST, ShardTarget, read_manifest
from protos.shard_writer import ShardSpec, ShardWriter
from protos.shards import CapturedSequence, open_shards

TARGET = ShardTarget(
    model="tiny",
    fingerprint="f" * 64,
    embedding_hash="e" * 64,
    tokenizer_hash="",
    vocab_size=50,
    hidden_size=4,
    num_layers=6,
)
SPEC = ShardSpec(TARGET, tapped_layers=(0, 2, 5), rows_per_shard=20)


def sequence(index: int, history: int = 0) -> CapturedSequence:
    """A text whose every number tells where it comes from."""
    generator = torch.Generator().manual_seed(index)
    prompt_length, length = 3 + index % 4, 12 + index % 5
    first = max(prompt_length - 1 - history, 0)
    rows = length - 1 - first
    return CapturedSequence(
        token_ids=torch.randint(0, 50, (length,), generator=generator, dtype=torch.int32),
        prompt_length=prompt_length,
        temperature=0.5 * (index % 3),
        source=f"source {index}",
        first_position=first,
        features=torch.randn(rows, 3, 4, generator=generator).to(torch.float16).to(torch.float32),
        greedy_tokens=torch.randint(0, 50, (rows,), generator=generator, dtype=torch.int32),
        log_normalisers=torch.randn(rows, generator=generator),
        sampling_key=bytes([index]) * 16 if index % 2 else b"",
    )


def write(folder: Path, count: int, spec: ShardSpec = SPEC) -> None:
    writer = ShardWriter(folder, spec)
    for index in range(writer.num_written, count):
        writer.append(sequence(index, spec.history))
    writer.close()


def read(folder: Path) -> list[CapturedSequence]:
    _, shards = open_shards(folder)
    return [shard.sequence(index) for shard in shards for index in range(len(shard))]


def assert_same(found: CapturedSequence, expected: CapturedSequence) -> None:
    for name in CapturedSequence.__dataclass_fields__:
        ours, theirs = getattr(found, name), getattr(expected, name)
        if isinstance(theirs, torch.Tensor):
            assert torch.equal(ours.to(theirs.dtype), theirs), name
        else:
            assert ours == theirs, name


@pytest.mark.parametrize("history", [0, 2])
def test_what_is_written_is_read(tmp_path: Path, history: int) -> None:
    spec = ShardSpec(TARGET, (0, 2, 5), history=history, rows_per_shard=20)
    write(tmp_path, 11, spec)
    manifest, shards = open_shards(tmp_path)
    assert manifest.complete
    assert len(shards) > 2
    assert (manifest.num_sequences, manifest.dtype) == (11, "float16")
    for index, found in enumerate(read(tmp_path)):
        assert_same(found, sequence(index, history))


def test_an_interrupted_writer_goes_on_behind_its_last_whole_file(tmp_path: Path) -> None:
    write(tmp_path / "whole", 11)
    broken = ShardWriter(tmp_path / "broken", SPEC)
    for index in range(7):
        broken.append(sequence(index))
    assert 0 < broken.num_written < 7, "the rest was pending when the writer died"
    assert not read_manifest(tmp_path / "broken").complete
    write(tmp_path / "broken", 11)
    for ours, theirs in zip(read(tmp_path / "broken"), read(tmp_path / "whole"), strict=True):
        assert_same(ours, theirs)


def test_a_writer_killed_while_it_writes_leaves_the_old_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = ShardWriter(tmp_path, SPEC)
    for index in range(3):
        writer.append(sequence(index))
    before = read_manifest(tmp_path)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shard_manifest.os, "fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        writer.append(sequence(3)) or writer.close()
    monkeypatch.undo()
    assert read_manifest(tmp_path) == before
    open_shards(tmp_path)


@pytest.mark.parametrize(
    ("field", "spec"),
    [
        ("target", ShardSpec(TARGET.model_copy(update={"fingerprint": "0" * 64}), (0, 2, 5))),
        ("tapped_layers", ShardSpec(TARGET, (0, 3, 5))),
        ("dtype", ShardSpec(TARGET, (0, 2, 5), dtype="float32")),
        ("history", ShardSpec(TARGET, (0, 2, 5), history=3)),
        ("source_sha256", ShardSpec(TARGET, (0, 2, 5), source_sha256="1" * 64)),
    ],
)
def test_a_folder_of_something_else_is_not_written_to(tmp_path: Path, field: str, spec: ShardSpec) -> None:
    write(tmp_path, 3)
    with pytest.raises(ContractMismatch) as caught:
        ShardWriter(tmp_path, spec)
    assert caught.value.field == field


def test_a_feature_beyond_float16_is_an_error_not_an_infinity(tmp_path: Path) -> None:
    one = sequence(0)
    one.features[2, 1, 0] = 1e5
    with pytest.raises(ContractMismatch, match="float32"):
        ShardWriter(tmp_path, SPEC).append(one)
    with pytest.raises(InvalidRequest, match="bfloat16"):
        ShardWriter(tmp_path, ShardSpec(TARGET, (0, 2, 5), dtype="bfloat16"))


Change = Callable[[dict[str, Any]], None]


def _set(path: str, value: object) -> Change:
    def change(document: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        place: Any = document
        for name in parents:
            place = place[int(name)] if name.isdigit() else place[name]
        place[last] = value

    return change


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("version", _set("version", 2)),
        ("format", _set("format", "other")),
        ("extra", _set("extra", 1)),
        ("dtype", _set("dtype", "int8")),
        ("history", _set("history", -1)),
        ("complete", _set("complete", "yes")),
        ("tapped_layers", _set("tapped_layers", [0, 5, 2])),
        ("tapped_layers", _set("tapped_layers", [0, 2, 4])),
        ("tapped_layers", _set("tapped_layers", [0, 2, 2, 5])),
        ("tapped_layers", _set("tapped_layers", [0, 2, 9])),
        ("target.vocab_size", _set("target.vocab_size", "50")),
        ("target.fingerprint", _set("target.fingerprint", "")),
        ("shards.0.sha256", _set("shards.0.sha256", "abc")),
        ("shards.0.file", _set("shards.0.file", "../shard")),
        ("twice", _set("shards.1.file", "shard-00000.safetensors")),
    ],
)
def test_a_wrong_manifest_is_refused_naming_the_field(tmp_path: Path, field: str, change: Change) -> None:
    write(tmp_path, 6)
    document = json.loads((tmp_path / MANIFEST).read_text())
    change(document)
    (tmp_path / MANIFEST).write_text(json.dumps(document))
    with pytest.raises(ContractMismatch, match=field):
        open_shards(tmp_path)


def test_every_field_is_required(tmp_path: Path) -> None:
    write(tmp_path, 3)
    whole = json.loads((tmp_path / MANIFEST).read_text())
    for holder in ("", "target", "shards.0"):
        parts = [int(part) if part.isdigit() else part for part in holder.split(".") if part]
        for name in list(_at(whole, parts)):
            document = json.loads(json.dumps(whole))
            del _at(document, parts)[name]
            (tmp_path / MANIFEST).write_text(json.dumps(document))
            with pytest.raises(ContractMismatch, match=name):
                read_manifest(tmp_path)


def _at(document: Any, parts: list[int | str]) -> Any:
    for part in parts:
        document = document[part]
    return document


def test_damaged_and_missing_files_are_named(tmp_path: Path) -> None:
    write(tmp_path, 6)
    file = tmp_path / "shard-00001.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(ContractMismatch, match="shard-00001"):
        open_shards(tmp_path)
    file.unlink()
    with pytest.raises(ContractMismatch, match="shard-00001"):
        open_shards(tmp_path)
    with pytest.raises(NotFound):
        open_shards(tmp_path / "nothing")
    (tmp_path / MANIFEST).write_text("{")
    with pytest.raises(ContractMismatch):
        open_shards(tmp_path)


def test_counts_that_do_not_fit_the_file_are_refused(tmp_path: Path) -> None:
    write(tmp_path, 3)
    document = json.loads((tmp_path / MANIFEST).read_text())
    document["shards"][0]["num_rows"] += 1
    (tmp_path / MANIFEST).write_text(json.dumps(document))
    with pytest.raises(ContractMismatch):
        open_shards(tmp_path)
    write(tmp_path / "small", 3, ShardSpec(TARGET.model_copy(update={"vocab_size": 10}), (0, 2, 5)))
    with pytest.raises(ContractMismatch, match="no id of the target"):
        open_shards(tmp_path / "small")
