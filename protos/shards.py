"""Feature shards: what a target said and saw, as files that training reads.

A folder holds `manifest.json` and safetensors files of many sequences each. Of a sequence with n
tokens, the first P of them the prompt, the rows are consecutive positions f .. n - 2:

    row of position x    features at x, and the target's law of the token at x + 1

so the pivot of anchor a is row a - 1, and the law of proposal j (token a + j) is row a + j - 1. f is
P - 1, less at most `history` positions of the prompt. Of the law two numbers are kept, the argmax and
the logarithm of the normaliser; the rest follows from the last tapped feature and the LM head.

m tapped layers, D width, N rows of a sequence.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from protos.errors import ContractMismatch
from protos.shard_manifest import ShardFile, ShardManifest, check_files, read_manifest

DTYPES = {"float16": torch.float16, "float32": torch.float32, "float64": torch.float64}
_TENSORS = {
    "token_ids": torch.int32,
    "token_offsets": torch.int64,
    "prompt_lengths": torch.int32,
    "first_positions": torch.int32,
    "temperatures": torch.float32,
    "row_offsets": torch.int64,
    "greedy_tokens": torch.int32,
    "log_normalisers": torch.float32,
}


@dataclass(frozen=True, eq=False)
class CapturedSequence:
    """One text with the target's states.

    Attributes:
        token_ids: [n] int32, prompt and response.
        prompt_length: P.
        temperature: at which the response was drawn; 0 = greedy.
        source: where the prompt comes from.
        first_position: f, the position of row 0.
        features: [N, m, D].
        greedy_tokens: [N] int32, the argmax of each row's law.
        log_normalisers: [N] float32, logsumexp of each row's logits.
        sampling_key: with which the response was drawn; empty where it is not known.
    """

    token_ids: torch.Tensor
    prompt_length: int
    temperature: float
    source: str
    first_position: int
    features: torch.Tensor
    greedy_tokens: torch.Tensor
    log_normalisers: torch.Tensor
    sampling_key: bytes = b""

    @property
    def num_response_tokens(self) -> int:
        return len(self.token_ids) - self.prompt_length


@dataclass(frozen=True, eq=False)
class Shard:
    """The tensors of one file, S sequences with T tokens and N rows in all; features are mapped, not read.

    Attributes:
        token_ids: [T] int32; sequence i has those from token_offsets[i] to token_offsets[i + 1].
        row_offsets: [S + 1] likewise for features [N, m, D], greedy_tokens and log_normalisers [N].
        sources, sampling_keys: [S].
    """

    token_ids: torch.Tensor
    token_offsets: torch.Tensor
    prompt_lengths: torch.Tensor
    first_positions: torch.Tensor
    temperatures: torch.Tensor
    row_offsets: torch.Tensor
    greedy_tokens: torch.Tensor
    log_normalisers: torch.Tensor
    features: torch.Tensor
    sources: tuple[str, ...]
    sampling_keys: tuple[bytes, ...]

    def __len__(self) -> int:
        return len(self.prompt_lengths)

    def sequence(self, index: int) -> CapturedSequence:
        """One sequence; its tensors are views."""
        tokens = slice(int(self.token_offsets[index]), int(self.token_offsets[index + 1]))
        rows = slice(int(self.row_offsets[index]), int(self.row_offsets[index + 1]))
        return CapturedSequence(
            token_ids=self.token_ids[tokens],
            prompt_length=int(self.prompt_lengths[index]),
            temperature=float(self.temperatures[index]),
            source=self.sources[index],
            first_position=int(self.first_positions[index]),
            features=self.features[rows],
            greedy_tokens=self.greedy_tokens[rows],
            log_normalisers=self.log_normalisers[rows],
            sampling_key=self.sampling_keys[index],
        )


def open_shards(folder: Path, *, trust_hashes: bool = False) -> tuple[ShardManifest, list[Shard]]:
    """Opens a folder for reading.

    Args:
        trust_hashes: skip the reading of every byte that checking the hashes takes.

    Raises:
        NotFound, ContractMismatch: no folder of shards, or a damaged one.
    """
    manifest = read_manifest(folder)
    if not manifest.num_sequences:
        raise ContractMismatch(f"{folder} has no sequence yet", field="shards")
    if not trust_hashes:
        check_files(folder, manifest)
    return manifest, [_open(folder / shard.file, shard, manifest) for shard in manifest.shards]


def _open(file: Path, entry: ShardFile, manifest: ShardManifest) -> Shard:
    try:
        with safe_open(file, framework="pt") as opened:
            metadata = opened.metadata() or {}
            sources = tuple(json.loads(metadata["sources"]))
            keys = (
                json.loads(metadata["sampling_keys"]) if "sampling_keys" in metadata else [""] * len(sources)
            )
            sampling_keys = tuple(map(bytes.fromhex, keys))
        tensors = load_file(file)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise ContractMismatch(f"{file} is damaged: {error}", field=entry.file) from error
    if set(tensors) != {*_TENSORS, "features"}:
        raise ContractMismatch(f"{file} has tensors {sorted(tensors)}", field=entry.file)
    for name, dtype in {**_TENSORS, "features": DTYPES[manifest.dtype]}.items():
        if tensors[name].dtype != dtype:
            raise ContractMismatch(f"{file}: {name} is {tensors[name].dtype}, not {dtype}", field=name)
    shard = Shard(**tensors, sources=sources, sampling_keys=sampling_keys)
    _check(shard, entry, manifest)
    return shard


def _check(shard: Shard, entry: ShardFile, manifest: ShardManifest) -> None:
    width = (len(manifest.tapped_layers), manifest.target.hidden_size)
    wanted = {
        "token_ids": (entry.num_tokens,),
        "token_offsets": (entry.num_sequences + 1,),
        "prompt_lengths": (entry.num_sequences,),
        "first_positions": (entry.num_sequences,),
        "temperatures": (entry.num_sequences,),
        "row_offsets": (entry.num_sequences + 1,),
        "greedy_tokens": (entry.num_rows,),
        "log_normalisers": (entry.num_rows,),
        "features": (entry.num_rows, *width),
    }
    for name, shape in wanted.items():
        found = tuple(getattr(shard, name).shape)
        if found != shape:
            raise ContractMismatch(f"{entry.file}: {name} is {list(found)}, not {list(shape)}", field=name)
    ends = (int(shard.token_offsets[-1]), int(shard.row_offsets[-1]))
    named = (len(shard.sources), len(shard.sampling_keys))
    if (*ends, *named) != (entry.num_tokens, entry.num_rows, *[entry.num_sequences] * 2):
        raise ContractMismatch(f"{entry.file}: offsets end at {ends}, {named} names", field=entry.file)
    largest = int(shard.token_ids.max())
    if int(shard.token_ids.min()) < 0 or largest >= manifest.target.vocab_size:
        raise ContractMismatch(f"{entry.file}: token {largest} is no id of the target", field="token_ids")
    rows = shard.row_offsets.diff() + shard.first_positions + 1
    if not torch.equal(rows, shard.token_offsets.diff()):
        raise ContractMismatch(f"{entry.file}: rows do not end one before their text", field="row_offsets")


def shard_metadata(sequences: Sequence[CapturedSequence]) -> dict[str, str]:
    """The texts of a file that holds these sequences."""
    return {
        "sources": json.dumps([one.source for one in sequences]),
        "sampling_keys": json.dumps([one.sampling_key.hex() for one in sequences]),
    }


def pack_shard(sequences: Sequence[CapturedSequence]) -> dict[str, torch.Tensor]:
    """The tensors of a file that holds these sequences."""

    def joined(name: str) -> torch.Tensor:
        return torch.cat([getattr(one, name) for one in sequences]).contiguous()

    def offsets(lengths: Sequence[int]) -> torch.Tensor:
        return torch.tensor([0, *lengths]).cumsum(0)

    values = {
        "token_offsets": offsets([len(one.token_ids) for one in sequences]),
        "row_offsets": offsets([len(one.features) for one in sequences]),
        "prompt_lengths": torch.tensor([one.prompt_length for one in sequences]),
        "first_positions": torch.tensor([one.first_position for one in sequences]),
        "temperatures": torch.tensor([one.temperature for one in sequences]),
        "token_ids": joined("token_ids"),
        "greedy_tokens": joined("greedy_tokens"),
        "log_normalisers": joined("log_normalisers"),
    }
    typed = {name: values[name].to("cpu", dtype) for name, dtype in _TENSORS.items()}
    return {**typed, "features": joined("features")}
