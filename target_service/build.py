"""Puts a target together: model, pages, engine, and what it says of itself."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel

from protos.errors import InvalidRequest
from protos.feature_layers import build_target_layer_ids
from target_service import flash_kv, fused, kernel_choice, loader
from target_service.config import TargetConfig
from target_service.engine import Engine
from target_service.fingerprint import embedding_hash, model_fingerprint, tokenizer_files, tokenizer_hash
from target_service.grammar import GrammarFactory
from target_service.grammars import Grammars
from target_service.limits import EngineLimits
from target_service.loader import LoadedTarget
from target_service.memory_plan import PoolWish, StepSize, available_bytes, plan_pages
from target_service.model import TargetModel, input_embedding, kv_shape, self_test_logits

# Requests that verify a whole block in one step, for the memory plan.
_LARGE_BATCH = 16


@dataclass(frozen=True)
class TargetDescription:
    """What `Describe` tells; sizes as in protos/common.proto."""

    instance_id: str
    model: str
    fingerprint: str
    embedding_hash: str
    tokenizer_hash: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    tapped_layers: tuple[int, ...]
    dtype: str
    attention_kernel: str
    linear_kernel: str
    max_context: int
    page_size: int
    num_pages: int
    max_verify_block_size: int
    eos_ids: tuple[int, ...]
    temperature: float | None
    top_p: float | None
    top_k: int | None
    threads: int


@dataclass(frozen=True, eq=False)
class BuiltTarget:
    """An engine that has passed its self-test, not yet owned by a thread."""

    engine: Engine
    description: TargetDescription
    tokenizer_files: dict[str, bytes]
    feature_dtype: str | None = None  # wire dtype of pivot features; None: as they are computed


def pool_pages(config: TargetConfig, model: PreTrainedModel, max_context: int) -> int:
    """Pages of the pool: what fits the memory beside the largest step, at most eight full contexts.

    Raises:
        InvalidRequest: they do not fit.
    """
    hf_config = model.config
    step = StepSize(
        rows=config.prefill_rows + _LARGE_BATCH * config.max_verify_block_size,
        decision_rows=_LARGE_BATCH * config.max_verify_block_size,
        hidden_size=int(hf_config.hidden_size),
        intermediate_size=int(hf_config.intermediate_size),
        vocab_size=int(hf_config.vocab_size),
        dtype_bytes=model.dtype.itemsize,
    )
    useful = 8 * -(-max_context // config.page_size)
    wish = PoolWish(config.num_pages, config.max_pool_bytes, useful)
    page_bytes = kv_shape(model).bytes_per_token() * config.page_size
    return plan_pages(wish, page_bytes, step.num_bytes(), available_bytes(model.device))


def _tapped_layers(config: TargetConfig, num_layers: int) -> tuple[int, ...]:
    if config.tapped_layers:
        return loader.check_tapped_layers(config.tapped_layers, num_layers)
    most = min(config.num_tapped_layers, num_layers)
    try:
        return build_target_layer_ids(num_layers, most)
    except ValueError as error:
        raise InvalidRequest(str(error), field="num_tapped_layers") from error


def _flash(config: TargetConfig, model: PreTrainedModel) -> flash_kv.Kernel | None:
    """flash-attn's kernel where it is asked for by name; `auto` never takes one that is not proved."""
    if config.attention in ("auto", "sdpa"):
        return None
    if config.attention != "flash":
        raise InvalidRequest(f"unknown attention {config.attention!r}: auto, sdpa, flash", field="attention")
    return flash_kv.load_kernel(config.page_size, model.dtype, model.device)


def build(config: TargetConfig) -> BuiltTarget:
    """Loads, self-tests and warms up a target.

    Raises:
        NotFound, ContractMismatch, InvalidRequest: see loader and model.
    """
    if not config.target:
        raise InvalidRequest("name a model: --target FOLDER", field="target")
    device = config.device
    on_cpu = torch.device(device).type == "cpu"
    dtype = ("float32" if on_cpu else "bfloat16") if config.dtype == "auto" else config.dtype
    return assemble(loader.load(config.target, dtype, device, config.trust_remote_code), config)


def assemble(loaded: LoadedTarget, config: TargetConfig) -> BuiltTarget:
    """Builds the engine around a loaded model (tests hand in random tiny ones)."""
    hf_config = loaded.model.config
    num_layers = int(hf_config.num_hidden_layers)
    max_context = config.max_context or int(hf_config.max_position_embeddings)
    tapped_layers = _tapped_layers(config, num_layers)
    fingerprint = model_fingerprint(loaded.folder)
    kernel = kernel_choice.choose(config.linear_kernel, loaded.model, fingerprint, config.threads)
    stock = self_test_logits(loaded.model)
    fused.install(loaded.model, kernel)
    pages = pool_pages(config, loaded.model, max_context)
    flash = _flash(config, loaded.model)
    model = TargetModel(loaded.model, tapped_layers, pages, config.page_size, flash)
    model.self_test(stock)
    limits = EngineLimits(
        page_size=config.page_size,
        num_pages=pages,
        prefill_rows=config.prefill_rows,
        max_context=max_context,
        max_verify_block_size=config.max_verify_block_size,
        eos_ids=loaded.eos_ids,
        prefix_root=fingerprint.encode(),
        uses_prefix_cache=config.prefix_cache,
        prefill_seconds=config.prefill_seconds,
    )
    description = _describe(loaded, model, limits, config, kernel)
    files = tokenizer_files(loaded.folder)
    wire_dtype = None if config.feature_dtype == "auto" else config.feature_dtype
    factory = GrammarFactory(
        files.get("tokenizer.json"), model.vocab_size, loaded.eos_ids, config.grammar_no_forcing
    )
    engine = Engine(model, limits, grammars=Grammars(factory))
    return BuiltTarget(engine, description, files, wire_dtype)


def _describe(
    loaded: LoadedTarget, model: TargetModel, limits: EngineLimits, config: TargetConfig, kernel: str
) -> TargetDescription:
    return TargetDescription(
        instance_id=uuid.uuid4().hex,
        model=Path(loaded.folder).resolve().name,
        fingerprint=model_fingerprint(loaded.folder),
        embedding_hash=embedding_hash(input_embedding(loaded.model)),
        tokenizer_hash=tokenizer_hash(tokenizer_files(loaded.folder)),
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        num_layers=int(loaded.model.config.num_hidden_layers),
        tapped_layers=model.tapped_layers,
        dtype=str(loaded.model.dtype).removeprefix("torch."),
        attention_kernel=model.attention_kernel,
        linear_kernel=kernel,
        max_context=limits.max_context,
        page_size=limits.page_size,
        num_pages=limits.num_pages,
        max_verify_block_size=limits.max_verify_block_size,
        eos_ids=tuple(sorted(limits.eos_ids)),
        temperature=loaded.temperature,
        top_p=loaded.top_p,
        top_k=loaded.top_k,
        threads=config.threads,
    )
