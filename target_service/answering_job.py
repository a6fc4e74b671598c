"""One generation: questions in, a folder of shards with the target's answers and states out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from protos.bfloat16 import use_bfloat16
from protos.errors import InvalidRequest
from protos.shard_manifest import ShardManifest
from protos.shard_writer import ShardSpec, ShardWriter
from protos.shards import DTYPES
from target_service import loader
from target_service.answering import Answering, Question
from target_service.build import BuiltTarget, assemble
from target_service.config import TargetConfig
from target_service.engine import Engine
from target_service.export_job import HEAD, PAGE_SIZE, Watch, shard_target
from target_service.recording import Recorder


@dataclass(frozen=True)
class AnsweringOptions:
    """Of which target, and at which cost; fields as in `dlite data generate`."""

    target: str
    num_tapped_layers: int = 8
    feature_dtype: str = "float16"
    dtype: str = "auto"
    matrices: str = ""
    concurrency: int = 32
    threads: int = 1
    device: str = "cpu"


def answer_all(
    questions: Sequence[Question], out: Path, options: AnsweringOptions, watch: Watch
) -> ShardManifest:
    """Answers all questions; goes on where an interrupted run stopped.

    Raises:
        InvalidRequest: no question, or one that the target does not take.
        NotFound, ContractMismatch: the target cannot be used, or the folder holds something else.
    """
    if not questions:
        raise InvalidRequest("there is no prompt to answer", field="--prompts")
    torch.set_num_threads(options.threads)
    on_cpu = torch.device(options.device).type == "cpu"
    dtype = ("float32" if on_cpu else "bfloat16") if options.dtype == "auto" else options.dtype
    loaded = loader.load(options.target, dtype, options.device)
    built = assemble(loaded, _target_config(questions, options))
    if options.matrices:
        use_bfloat16(loaded.model, keep=HEAD)
    spec = ShardSpec(
        target=shard_target(loaded),
        tapped_layers=built.description.tapped_layers,
        dtype=options.feature_dtype,
        source_sha256=questions_sha256(questions),
        matrices=options.matrices,
    )
    writer = ShardWriter(out, spec)
    done = writer.num_written
    recorder, engine = recorded_engine(built, DTYPES[options.feature_dtype])
    answers = Answering(engine, recorder, options.concurrency).answers(questions[done:])
    for captured in watch(answers, len(questions), done):
        writer.append(captured)
    writer.close()
    return writer.manifest


def recorded_engine(built: BuiltTarget, dtype: torch.dtype) -> tuple[Recorder, Engine]:
    """An engine like a built one, over the same model, with a recorder between them."""
    limits = built.engine.limits
    recorder = Recorder(built.engine.model, limits.page_size, dtype)
    return recorder, Engine(recorder, limits)


def _target_config(questions: Sequence[Question], options: AnsweringOptions) -> TargetConfig:
    longest = max(len(one.prompt) + one.params.max_tokens for one in questions)
    pages = options.concurrency * -(-longest // PAGE_SIZE)
    return TargetConfig.load(
        None,
        target=options.target,
        num_tapped_layers=options.num_tapped_layers,
        dtype=options.dtype,
        linear_kernel="torch" if options.matrices else "auto",
        device=options.device,
        threads=options.threads,
        page_size=PAGE_SIZE,
        num_pages=pages,
    )


def questions_sha256(questions: Sequence[Question]) -> str:
    """Hex digest of all that decides the answers."""
    digest = hashlib.sha256()
    for one in questions:
        digest.update(repr((one.prompt, one.params, one.sampling_key, one.source)).encode())
    return digest.hexdigest()


def keyed(seed: int, index: int) -> bytes:
    """The sampling key [16 bytes] of one question."""
    return hashlib.sha256(f"{seed}/{index}".encode()).digest()[:16]
