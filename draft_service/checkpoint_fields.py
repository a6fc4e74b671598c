"""The fields of a dlite_v1 `config.json`, with the type and range of each."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="allow", protected_namespaces=())


class Rope(_Strict):
    rope_theta: float = Field(gt=0)
    rope_type: Literal["default"] = "default"


class DliteFields(_Strict):
    """`dlite_config`."""

    architecture_version: Literal["dlite_v1"]
    model_role: Literal["pivot_q_student"]
    chs_num_layers: int = Field(ge=2)
    target_layer_ids: list[int] = Field(min_length=2)
    sequential_head: Literal["rnn"]
    sequential_rank: int = Field(ge=1)
    mask_token_id: int = Field(ge=0)
    anchor_group_size: int = Field(ge=1)
    variable_block: bool = False
    draft_vocab_size: int | None = Field(default=None, ge=1)
    target_fingerprint: str = ""
    target_embedding_hash: str = ""


class ConfigFile(_Strict):
    """The whole file: a Qwen3 config with the drafter's own fields."""

    model_type: Literal["qwen3"] = "qwen3"
    vocab_size: int = Field(ge=1)
    hidden_size: int = Field(ge=1)
    intermediate_size: int = Field(ge=1)
    num_hidden_layers: int = Field(ge=1)
    num_attention_heads: int = Field(ge=1)
    num_key_value_heads: int = Field(ge=1)
    head_dim: int = Field(ge=2, multiple_of=2)
    hidden_act: Literal["silu"]
    rms_norm_eps: float = Field(gt=0)
    rope_theta: float | None = Field(default=None, gt=0)
    rope_parameters: Rope | None = None
    rope_scaling: None = None
    attention_bias: Literal[False] = False
    use_sliding_window: Literal[False] = False
    layer_types: list[Literal["full_attention"]] | None = None
    num_target_layers: int = Field(ge=2)
    block_size: int = Field(ge=2)
    dlite_config: DliteFields
