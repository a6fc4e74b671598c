"""One export: a file of sequences in, a folder of shards out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from protos.bfloat16 import use_bfloat16
from protos.feature_layers import build_target_layer_ids
from protos.shard_manifest import ShardManifest, ShardTarget
from protos.shard_writer import ShardSpec, ShardWriter
from protos.shards import CapturedSequence
from target_service import loader
from target_service.export import ExportLimits, TokenSequence, capture, read_sequences, source_sha256
from target_service.fingerprint import embedding_hash, model_fingerprint, tokenizer_files, tokenizer_hash
from target_service.loader import LoadedTarget
from target_service.model import TargetModel, input_embedding

PAGE_SIZE = 16
# The layer of a causal LM that makes its logits.
HEAD = "lm_head"
# (captured sequences, all of them, those of earlier runs) -> the same sequences, shown to somebody.
Watch = Callable[[Iterable[CapturedSequence], int, int], Iterator[CapturedSequence]]


@dataclass(frozen=True)
class ExportOptions:
    """Of which target, what, and at which cost; fields as in `dlite data export`."""

    target: str
    num_tapped_layers: int = 8
    history: int = 0
    feature_dtype: str = "float16"
    dtype: str = "auto"
    matrices: str = ""
    step_rows: int = 512
    threads: int = 1
    device: str = "cpu"


def export_file(file: Path, out: Path, options: ExportOptions, watch: Watch) -> ShardManifest:
    """Exports a file; goes on where an interrupted run stopped.

    Raises:
        InvalidRequest, NotFound: the file cannot be used.
        ContractMismatch: the folder holds something else, or the target is not supported.
    """
    torch.set_num_threads(options.threads)
    on_cpu = torch.device(options.device).type == "cpu"
    dtype = ("float32" if on_cpu else "bfloat16") if options.dtype == "auto" else options.dtype
    loaded = loader.load(options.target, dtype, options.device)
    config = loaded.model.config
    sequences = read_sequences(file, int(config.vocab_size), int(config.max_position_embeddings))
    layers = build_target_layer_ids(int(config.num_hidden_layers), options.num_tapped_layers)
    spec = ShardSpec(
        target=shard_target(loaded),
        tapped_layers=layers,
        dtype=options.feature_dtype,
        history=options.history,
        source_sha256=source_sha256(file),
        matrices=options.matrices,
    )
    writer = ShardWriter(out, spec)
    done = writer.num_written
    model = TargetModel(loaded.model, layers, num_pages(sequences, options.step_rows), PAGE_SIZE)
    model.self_test()
    if options.matrices:
        use_bfloat16(loaded.model, keep=HEAD)
    limits = ExportLimits(options.step_rows, options.history)
    for captured in watch(capture(model, sequences[done:], limits), len(sequences), done):
        writer.append(captured)
    writer.close()
    return writer.manifest


def num_pages(sequences: Iterable[TokenSequence], step_rows: int) -> int:
    """Enough for a step of short sequences (each may waste most of a page), and for the longest."""
    longest = max(len(one.token_ids) for one in sequences)
    return max(step_rows, -(-longest // PAGE_SIZE))


def shard_target(loaded: LoadedTarget) -> ShardTarget:
    """The manifest's description of a loaded target."""
    config = loaded.model.config
    return ShardTarget(
        model=Path(loaded.folder).resolve().name,
        fingerprint=model_fingerprint(loaded.folder),
        embedding_hash=embedding_hash(input_embedding(loaded.model)),
        tokenizer_hash=tokenizer_hash(tokenizer_files(loaded.folder)),
        vocab_size=int(config.vocab_size),
        hidden_size=int(config.hidden_size),
        num_layers=int(config.num_hidden_layers),
    )
