"""From folders to a model that is ready to train."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from draft_service.checkpoint import DraftCheckpointConfig, read_draft_config
from draft_service.model import DraftModel
from draft_service.training.data import TrainingData
from draft_service.training.forward import Frozen
from draft_service.training.history_net import HistoryNet
from draft_service.training.initialise import StartData, copy_layers, source_layers, start_model
from draft_service.training.recipe import Recipe
from draft_service.training.schedule import generator
from draft_service.training.target_weights import TargetWeights, load_target_weights
from draft_service.training.teacher import TeacherModel
from draft_service.training.vocabulary import choose_vocabulary, columns_of
from draft_service.untrained import UntrainedOptions, untrained_config
from draft_service.weights import load_model, load_token_ids
from protos.errors import ContractMismatch, InvalidRequest

# Enough for covariances of a few hundred dimensions.
_SAMPLED_STATES = 8192
_SAMPLED_PIVOTS = 512
_SAMPLE_PURPOSE = 3


@dataclass(frozen=True, eq=False)
class Prepared:
    """Everything a trainer needs.

    Attributes:
        model: started, on the device: a DraftModel, or a HistoryNet where the recipe asks for one.
        frozen: of the target, on the device.
        token_ids: [V_d] target ids, None without a reduced vocabulary.
    """

    config: DraftCheckpointConfig
    model: nn.Module
    frozen: Frozen
    data: TrainingData
    token_ids: torch.Tensor | None


def prepare(
    recipe: Recipe, data: TrainingData, target: Path, init_from: Path | None, device: str
) -> Prepared:
    """Reads the target, chooses the vocabulary and starts the weights.

    Raises:
        InvalidRequest, ContractMismatch: data, target and recipe do not fit together.
    """
    weights = load_target_weights(target, data.manifests[0].target)
    vocab_size = len(weights.embedding)
    if init_from is None:
        token_ids = _vocabulary(recipe, data, target, vocab_size)
        config = drafter_config(recipe, data, target)
        model = _started(config, weights, _start_data(data, token_ids, vocab_size, recipe), recipe)
    else:
        if recipe.net != "dlite" or recipe.path != "teacher_free":
            raise InvalidRequest(
                "only a drafter without a teacher starts from a checkpoint", field="init_from"
            )
        config = read_draft_config(init_from)
        check_start(config, drafter_config(recipe, data, target))
        model, token_ids = load_model(init_from, config), load_token_ids(init_from, config)
    frozen = Frozen(
        weights.embedding.to(device),
        weights.lm_head[token_ids].to(device),
        columns_of(token_ids, vocab_size).to(device),
    )
    reduced = None if config.draft_vocab_size is None else token_ids
    return Prepared(config, model.to(device), frozen, data, reduced)


def as_teacher(prepared: Prepared, recipe: Recipe) -> Prepared:
    """The same start for the net with a window."""
    teacher = TeacherModel(prepared.config)
    teacher.load_state_dict(prepared.model.state_dict(), strict=False)
    teacher.start_window(recipe.seed)
    return replace(prepared, model=teacher.to(prepared.frozen.embedding.device))


def _started(
    config: DraftCheckpointConfig, weights: TargetWeights, start: StartData, recipe: Recipe
) -> nn.Module:
    if recipe.net == "dlite":
        model = DraftModel(config)
        start_model(model, weights, start, recipe)
        return model
    net = HistoryNet(config, has_heads=recipe.net == "dspark")
    net.start(recipe.seed)
    if recipe.block_init != "random":
        with torch.no_grad():
            copy_layers(net, weights, start.features, source_layers(net.config, recipe.block_init))
    return net


def drafter_config(recipe: Recipe, data: TrainingData, target: Path) -> DraftCheckpointConfig:
    """The configuration that the recipe gives for this target."""
    captured = data.manifests[0]
    options = UntrainedOptions(
        mask_token_id=recipe.mask_token_id,
        block_size=recipe.block_size,
        num_layers=recipe.num_layers,
        num_tapped=len(captured.tapped_layers),
        rank=recipe.rank,
        variable_block=recipe.variable_block,
    )
    config = untrained_config(target, options)
    if recipe.draft_vocab_size > config.vocab_size:
        raise InvalidRequest(
            f"{recipe.draft_vocab_size} is more than the target's {config.vocab_size} ids",
            field="draft_vocab_size",
        )
    return replace(
        config,
        target_layer_ids=data.layer_ids,
        intermediate_size=recipe.intermediate_size or config.intermediate_size,
        draft_vocab_size=recipe.draft_vocab_size or None,
        target_fingerprint=captured.target.fingerprint,
        target_embedding_hash=captured.target.embedding_hash,
    )


def check_start(found: DraftCheckpointConfig, wanted: DraftCheckpointConfig) -> None:
    """Weights to start from must be of the recipe's drafter.

    Raises:
        ContractMismatch: a size differs, naming it.
    """
    for field in found.__dataclass_fields__:
        if field not in ("notes", "target_fingerprint") and getattr(found, field) != getattr(wanted, field):
            raise ContractMismatch(
                f"the weights to start from have {field} {getattr(found, field)!r}, "
                f"the recipe {getattr(wanted, field)!r}",
                field=field,
            )


def _vocabulary(recipe: Recipe, data: TrainingData, target: Path, vocab_size: int) -> torch.Tensor:
    if not recipe.draft_vocab_size:
        return torch.arange(vocab_size)
    labels = data.rows.labels[data.anchors + 1]
    return choose_vocabulary(labels, vocab_size, recipe.draft_vocab_size, eos_ids(target, vocab_size))


def eos_ids(target: Path, vocab_size: int) -> list[int]:
    """Ids that end a text, from the target folder's configs; empty when they name none."""
    for name in ("generation_config.json", "config.json"):
        file = target / name
        found: Any = json.loads(file.read_text()).get("eos_token_id") if file.exists() else None
        ids = found if isinstance(found, list) else [] if found is None else [found]
        if ids:
            return [token for token in ids if 0 <= token < vocab_size]
    return []


def _start_data(data: TrainingData, token_ids: torch.Tensor, vocab_size: int, recipe: Recipe) -> StartData:
    order = torch.randperm(len(data.anchors), generator=generator(recipe.seed, _SAMPLE_PURPOSE, 0))
    pivots = data.anchors[order[:_SAMPLED_STATES]]
    counts = torch.bincount(data.rows.labels[data.anchors + 1], minlength=vocab_size)
    return StartData(
        states=data.read_last(pivots),
        features=data.gather(pivots[:_SAMPLED_PIVOTS], 1).features,
        token_ids=token_ids,
        # Every id counts a little: none was impossible only because it was not seen.
        token_weights=counts + 0.1,
    )
