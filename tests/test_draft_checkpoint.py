"""Checkpoints: what is missing, wrong or does not belong together is named (pitfalls D13, E1, E2)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from draft_service.checkpoint import read_draft_config
from draft_service.loader import load_drafter
from draft_service.untrained import UntrainedOptions
from protos.errors import ContractMismatch, InvalidRequest
from tests.golden_draft import DRAFTS, GOLDEN, TARGET, change_config

OPTIONS = UntrainedOptions(mask_token_id=255, num_tapped=4, num_layers=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / "draft_dlite_v1_g1", tmp_path / "drafter"))


@pytest.mark.parametrize("name", DRAFTS)
def test_golden_configs(name: str) -> None:
    config = read_draft_config(GOLDEN / name)
    assert config.target_layer_ids == (0, 1, 4, 5)
    assert (config.block_size, config.num_proposals, config.rank, config.mask_token_id) == (8, 7, 8, 255)
    assert config.anchor_group_size == (2 if name.endswith("g2") else 1)
    assert config.notes == ()
    assert not config.variable_block


REQUIRED = [
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "rms_norm_eps",
    "rope_theta",
    "num_target_layers",
    "block_size",
    "dlite_config",
    "dlite_config.architecture_version",
    "dlite_config.model_role",
    "dlite_config.chs_num_layers",
    "dlite_config.target_layer_ids",
    "dlite_config.sequential_head",
    "dlite_config.sequential_rank",
    "dlite_config.mask_token_id",
    "dlite_config.anchor_group_size",
]


@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_field_is_named(folder: Path, name: str) -> None:
    change_config(folder, name, drop=True)
    with pytest.raises(ContractMismatch) as caught:
        read_draft_config(folder)
    assert caught.value.field == name
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dlite_config.target_layer_ids", [0, 1, 1, 5]),
        ("dlite_config.target_layer_ids", [-1, 1, 4, 5]),
        ("dlite_config.target_layer_ids", [0, 1, 4, 6]),
        ("dlite_config.target_layer_ids", [5, 4, 1, 0]),
        ("dlite_config.target_layer_ids", "0,1,4,5"),
        ("dlite_config.chs_num_layers", 3),
        ("dlite_config.mask_token_id", 256),
        ("dlite_config.mask_token_id", -1),
        ("dlite_config.anchor_group_size", 0),
        ("dlite_config.anchor_group_size", True),
        ("dlite_config.sequential_rank", "8"),
        ("dlite_config.sequential_head", "mlp"),
        ("dlite_config.architecture_version", "dlite_v2"),
        ("dlite_config.model_role", "teacher"),
        ("dlite_config.variable_block", "yes"),
        ("dlite_config.draft_vocab_size", 257),
        ("block_size", 1),
        ("block_size", 8.0),
        ("hidden_act", "gelu"),
        ("rope_scaling", {"rope_type": "dynamic", "factor": 2.0}),
        ("use_sliding_window", True),
        ("attention_bias", True),
        ("layer_types", ["full_attention", "sliding_attention"]),
        ("num_key_value_heads", 3),
        ("model_type", "llama"),
    ],
)
def test_a_wrong_field_is_named(folder: Path, name: str, value: Any) -> None:
    change_config(folder, name, value)
    with pytest.raises(ContractMismatch) as caught:
        read_draft_config(folder)
    assert caught.value.field.startswith(name)


def test_a_field_given_twice_is_named(folder: Path) -> None:
    file = folder / "config.json"
    file.write_text(file.read_text().replace('"block_size": 8,', '"block_size": 8, "block_size": 4,'))
    with pytest.raises(ContractMismatch, match="block_size"):
        read_draft_config(folder)


def test_a_missing_group_size_can_be_set_by_hand_and_is_told(folder: Path) -> None:
    change_config(folder, "dlite_config.anchor_group_size", drop=True)
    with pytest.raises(ContractMismatch, match="--set anchor_group_size=1"):
        read_draft_config(folder)
    config = read_draft_config(folder, ["anchor_group_size=1"])
    assert config.anchor_group_size == 1
    assert "anchor_group_size" in config.notes[0]
    assert load_drafter(folder, TARGET, ["anchor_group_size=1"]).description.notes == config.notes


@pytest.mark.parametrize("override", ["anchor_group_size=2", "no_such_field=1", "anchor_group_size"])
def test_set_only_fills_in_what_is_missing(folder: Path, override: str) -> None:
    with pytest.raises(InvalidRequest, match="--set"):
        read_draft_config(folder, [override])


def test_an_unknown_field_is_told(folder: Path) -> None:
    change_config(folder, "dlite_config.variable_blok", True)
    assert "variable_blok" in read_draft_config(folder).notes[0]


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_damaged_config(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises((ContractMismatch, InvalidRequest), match=r"config\.json"):
        read_draft_config(folder)


def test_a_config_of_newer_transformers_loads(folder: Path) -> None:
    change_config(folder, "rope_theta", drop=True)
    change_config(folder, "rope_parameters", {"rope_theta": 10000.0, "rope_type": "default"})
    assert read_draft_config(folder).rope_theta == 10000.0


def test_reading_a_config_imports_no_torch() -> None:
    code = "import sys, draft_service.checkpoint, draft_service.cli; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
