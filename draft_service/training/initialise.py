"""Where a drafter's weights start: a seed, layers of the target, a fit to its LM head."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from draft_service.backbone import Attention, Block
from draft_service.checkpoint import DraftCheckpointConfig
from draft_service.model import DraftModel
from draft_service.training.history_net import HistoryNet
from draft_service.training.low_rank import fit_low_rank, principal_rows
from draft_service.training.recipe import BlockInit, Recipe
from draft_service.training.target_weights import TargetWeights
from draft_service.untrained import initialise
from protos.errors import ContractMismatch

_COPIED = (
    "self_attn.q_proj.weight",
    "self_attn.k_proj.weight",
    "self_attn.v_proj.weight",
    "self_attn.o_proj.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "mlp.down_proj.weight",
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
)
# The recurrent state starts as a small correction to what the backbone says.
_STATE_GAIN = 0.1


@dataclass(frozen=True, eq=False)
class StartData:
    """What the data-aware starts look at.

    Attributes:
        states: [n, D] states that the LM head is applied to.
        features: [n, m, D] pivot features.
        token_ids: [V_d] the drafter's vocabulary.
        token_weights: [V] relative frequency of each target id, all positive.
    """

    states: torch.Tensor
    features: torch.Tensor
    token_ids: torch.Tensor
    token_weights: torch.Tensor


def start_model(model: DraftModel, target: TargetWeights, data: StartData, recipe: Recipe) -> None:
    """Sets every weight of a model.

    Raises:
        ContractMismatch: the target's layers do not have the drafter's shapes.
    """
    model.load_state_dict(initialise(model.config, recipe.seed).state_dict())
    with torch.no_grad():
        if recipe.block_init != "random":
            copy_layers(model, target, data.features, source_layers(model.config, recipe.block_init))
        if recipe.head_init == "low_rank":
            fit_head(model, target, data)
        if recipe.head == "none":
            model.sequential_head.state_hidden_mlp.weight[:, : model.config.rank] = 0.0


def source_layers(config: DraftCheckpointConfig, init: BlockInit) -> list[int]:
    """The target layer each block is copied from."""
    depth, last = config.num_layers, config.num_target_layers - 1
    if init == "last_layers":
        return [max(last - depth + 1 + i, 0) for i in range(depth)]
    return [round((i + 1) * last / depth) for i in range(depth)]


def copy_layers(
    model: DraftModel | HistoryNet, target: TargetWeights, features: torch.Tensor, layers: list[int]
) -> None:
    """Copies decoder layers into the blocks, and the final norm."""
    for block, index in zip(model.layers, layers, strict=True):
        assert isinstance(block, Block)
        source = target.layer(index)
        own = block.state_dict()
        for name in _COPIED:
            if name not in source or source[name].shape != own[name].shape:
                found = list(source[name].shape) if name in source else "nothing"
                raise ContractMismatch(
                    f"target layer {index} has {found} for {name}, the drafter {list(own[name].shape)}: "
                    "use block_init=random, or the target's sizes",
                    field="block_init",
                )
            own[name].copy_(source[name])
        _set_head_norms(block.self_attn, source, features)
    final = target.final_norm()
    if final is not None:
        model.norm.weight.copy_(final)


def _set_head_norms(attention: Attention, source: dict[str, torch.Tensor], features: torch.Tensor) -> None:
    """Per-head norms: the target's own, or the scale that queries and keys have without them."""
    norms = {"q": attention.q_norm, "k": attention.k_norm}
    rows = F.rms_norm(features.flatten(0, 1), features.shape[-1:])  # [n m, D]
    rows = rows * source["input_layernorm.weight"]
    for name, norm in norms.items():
        own = source.get(f"self_attn.{name}_norm.weight")
        if own is not None:
            norm.weight.copy_(own)
        else:
            projected = rows @ source[f"self_attn.{name}_proj.weight"].T
            norm.weight.fill_(float(projected.square().mean().sqrt()))


def fit_head(model: DraftModel, target: TargetWeights, data: StartData) -> None:
    """W_o, the hidden part of W_h and E_R by low-rank fits; the state enters with a small gain."""
    head = model.sequential_head
    rank = model.config.rank
    weights = data.token_weights / data.token_weights.sum()
    of_drafter = weights[data.token_ids] / weights[data.token_ids].sum()
    fitted = fit_low_rank(target.lm_head[data.token_ids], data.states, of_drafter, rank)
    head.output_proj.weight.copy_(fitted.output)
    head.state_hidden_mlp.weight[:, rank:].copy_(fitted.reduce)
    head.state_hidden_mlp.weight[:, :rank].mul_(_STATE_GAIN / (0.02 * math.sqrt(rank)))
    head.state_hidden_mlp.bias.zero_()
    head.prev_token_embedding.weight.copy_(principal_rows(target.embedding, weights, rank))
