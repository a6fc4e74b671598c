"""The configuration of a dlite_v1 checkpoint folder. Imports no torch: others read it too.

`config.json` is a Qwen3 config plus `num_target_layers`, `block_size` and `dlite_config`. Nothing
is guessed: a missing or impossible field is an error that names it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from draft_service.checkpoint_fields import ConfigFile, DliteFields
from protos.errors import ContractMismatch, InvalidRequest

ARCHITECTURE = "dlite_v1"
TEACHER_ROLE = "pivot_q_teacher"


@dataclass(frozen=True)
class DraftCheckpointConfig:
    """A checked drafter configuration.

    D = hidden_size, L = num_target_layers, m = len(target_layer_ids), B = block_size, V = vocab_size,
    R = rank, V_d = draft_vocab_size (None: the drafter's vocabulary is the target's).
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    num_target_layers: int
    block_size: int
    target_layer_ids: tuple[int, ...]
    rank: int
    mask_token_id: int
    anchor_group_size: int
    variable_block: bool = False
    draft_vocab_size: int | None = None
    target_fingerprint: str = ""
    target_embedding_hash: str = ""
    notes: tuple[str, ...] = ()

    @property
    def num_proposals(self) -> int:
        """K, the most proposals of one block."""
        return self.block_size - 1

    @property
    def num_logits(self) -> int:
        """Rows of the output projection: V_d, or V without a reduced vocabulary."""
        return self.vocab_size if self.draft_vocab_size is None else self.draft_vocab_size


def read_draft_config(path: Path, overrides: Sequence[str] = ()) -> DraftCheckpointConfig:
    """Reads and checks `config.json` of a checkpoint folder.

    Args:
        path: the folder.
        overrides: "field=value" pairs that fill in missing fields of `dlite_config`.

    Raises:
        InvalidRequest: no such file, or an override that fills in nothing.
        ContractMismatch: a field is missing, has the wrong type or an impossible value.
    """
    document = _read_json(path / "config.json")
    notes = _fill_in(document, overrides)
    try:
        parsed = ConfigFile.model_validate(document)
    except ValidationError as error:
        raise _explain(error, path) from error
    unknown = sorted(parsed.dlite_config.model_extra or {})
    notes += [f"dlite_config.{name} is not known and was ignored" for name in unknown]
    return _checked(parsed, tuple(notes))


def _read_json(file: Path) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ContractMismatch(f"{file} has {repeated[0]!r} more than once", field=repeated[0])
        return dict(pairs)

    try:
        document = json.loads(file.read_text(), object_pairs_hook=unique)
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InvalidRequest(f"cannot read the drafter's {file}: {error}", field="drafter") from error
    if not isinstance(document, dict):
        raise ContractMismatch(f"{file} is not a JSON object", field="config.json")
    return document


def _fill_in(document: dict[str, Any], overrides: Sequence[str]) -> list[str]:
    fields = document.get("dlite_config")
    notes = []
    for override in overrides:
        name, _, text = override.partition("=")
        if name not in DliteFields.model_fields or not isinstance(fields, dict):
            raise InvalidRequest(f"--set {override}: there is no such field in dlite_config", field="--set")
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = text
        if name in fields and fields[name] != value:
            raise InvalidRequest(
                f"--set {override}: the checkpoint says {fields[name]!r}; only what is missing can be set",
                field="--set",
            )
        if name not in fields:
            fields[name] = value
            notes.append(f"dlite_config.{name} is missing in the checkpoint and was set to {value!r} by hand")
    return notes


def _explain(error: ValidationError, path: Path) -> ContractMismatch:
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"])
    advice = ""
    if field == "dlite_config.anchor_group_size" and first["type"] == "missing":
        advice = "; some published checkpoints leave it out: if this one was trained with the anchor alone, "
        advice += "start with --set anchor_group_size=1"
    if field == "dlite_config.model_role" and first.get("input") == TEACHER_ROLE:
        advice = "; this is the teacher of a two-stage training, which needs a history and is never served: "
        advice += "use the drafter/ folder of its run"
    return ContractMismatch(f"drafter {path}: {field}: {first['msg']}{advice}", field=field)


def _checked(parsed: ConfigFile, notes: tuple[str, ...]) -> DraftCheckpointConfig:
    dlite = parsed.dlite_config
    extra = parsed.model_extra or {}
    draft_vocab_size = dlite.draft_vocab_size or extra.get("draft_vocab_size")
    config = DraftCheckpointConfig(
        vocab_size=parsed.vocab_size,
        hidden_size=parsed.hidden_size,
        intermediate_size=parsed.intermediate_size,
        num_layers=parsed.num_hidden_layers,
        num_heads=parsed.num_attention_heads,
        num_kv_heads=parsed.num_key_value_heads,
        head_dim=parsed.head_dim,
        rms_norm_eps=parsed.rms_norm_eps,
        rope_theta=_rope_theta(parsed),
        num_target_layers=parsed.num_target_layers,
        block_size=parsed.block_size,
        target_layer_ids=tuple(dlite.target_layer_ids),
        rank=dlite.sequential_rank,
        mask_token_id=dlite.mask_token_id,
        anchor_group_size=dlite.anchor_group_size,
        variable_block=dlite.variable_block,
        draft_vocab_size=draft_vocab_size,
        target_fingerprint=dlite.target_fingerprint,
        target_embedding_hash=dlite.target_embedding_hash,
        notes=notes,
    )
    _check_layers(config, dlite.chs_num_layers)
    _check_sizes(config)
    return config


def _rope_theta(parsed: ConfigFile) -> float:
    if parsed.rope_parameters is not None:
        return parsed.rope_parameters.rope_theta
    if parsed.rope_theta is None:
        raise ContractMismatch(
            "the drafter's config has neither rope_theta nor rope_parameters", field="rope_theta"
        )
    return parsed.rope_theta


def _check_layers(config: DraftCheckpointConfig, declared: int) -> None:
    ids, field = config.target_layer_ids, "dlite_config.target_layer_ids"
    if len(ids) != declared:
        raise ContractMismatch(
            f"{len(ids)} target_layer_ids, but chs_num_layers is {declared}",
            field="dlite_config.chs_num_layers",
        )
    outside = [i for i in ids if not 0 <= i < config.num_target_layers]
    if outside:
        raise ContractMismatch(
            f"{outside[0]} is not a layer of a target with {config.num_target_layers} layers", field=field
        )
    if any(later <= earlier for earlier, later in pairwise(ids)):
        raise ContractMismatch(f"{list(ids)} must ascend without duplicates", field=field)


def _check_sizes(config: DraftCheckpointConfig) -> None:
    if config.num_heads % config.num_kv_heads:
        raise ContractMismatch(
            f"{config.num_heads} heads do not divide into {config.num_kv_heads} kv heads",
            field="num_key_value_heads",
        )
    if config.mask_token_id >= config.vocab_size:
        raise ContractMismatch(
            f"{config.mask_token_id} is outside the vocabulary of {config.vocab_size}",
            field="dlite_config.mask_token_id",
        )
    reduced = config.draft_vocab_size
    if reduced is not None and (type(reduced) is not int or not 1 <= reduced <= config.vocab_size):
        raise ContractMismatch(
            f"{reduced!r} is not a number of ids between 1 and {config.vocab_size}",
            field="dlite_config.draft_vocab_size",
        )
