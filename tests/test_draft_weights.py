"""Tensors and targets that do not fit a checkpoint are named (pitfalls D13, E1, E2)."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from draft_service.checkpoint import read_draft_config
from draft_service.embedding import EMBEDDING_KEY, embedding_hash, load_embedding
from draft_service.loader import load_drafter
from draft_service.untrained import UntrainedOptions, initialise, save_untrained, untrained_config
from draft_service.weights import load_model, load_token_ids, save_checkpoint
from protos.errors import ContractMismatch, InvalidRequest
from tests.golden_draft import DRAFTS, GOLDEN, TARGET, change_config, first_rounds

OPTIONS = UntrainedOptions(mask_token_id=255, num_tapped=4, num_layers=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / "draft_dlite_v1_g1", tmp_path / "drafter"))


def change_tensors(folder: Path, changes: dict[str, torch.Tensor | None]) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for name, tensor in changes.items():
        if tensor is None:
            del tensors[name]
        else:
            tensors[name] = tensor
    save_file(tensors, file)


KEY = "layers.1.mlp.up_proj.weight"
OUTPUT = "sequential_head.output_proj.weight"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({KEY: None}, KEY),
        ({OUTPUT: None, "sequential_head.output_proj": torch.zeros(256, 8)}, OUTPUT),
        ({"lm_head.weight": torch.zeros(256, 64)}, "lm_head.weight"),
        ({KEY: torch.zeros(64, 128)}, KEY),
        ({OUTPUT: torch.zeros(256, 8)}, OUTPUT),
        ({OUTPUT: torch.ones(152, 8)}, OUTPUT),
        ({KEY: torch.full((128, 64), float("nan"))}, KEY),
        ({KEY: torch.zeros(128, 64, dtype=torch.int64)}, KEY),
        ({"d2t": torch.arange(256)}, "d2t"),
    ],
    ids=str,
)
def test_wrong_tensors_refuse_to_start(folder: Path, changes: dict[str, Any], field: str) -> None:
    change_tensors(folder, changes)
    with pytest.raises(ContractMismatch) as caught:
        load_drafter(folder, TARGET)
    assert caught.value.field == field


def test_a_damaged_tensor_file_is_named(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ContractMismatch, match=r"model\.safetensors"):
        load_drafter(folder, TARGET)


def test_missing_folders(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="config"):
        load_drafter(tmp_path / "nowhere", TARGET)
    with pytest.raises(ContractMismatch, match="target"):
        load_drafter(GOLDEN / DRAFTS[0], tmp_path / "nowhere")


def target_with(tmp_path: Path, embedding: torch.Tensor, **fields: int) -> Path:
    """A target folder with nothing but a config and an embedding."""
    target = tmp_path / "target"
    target.mkdir()
    config = {**json.loads((TARGET / "config.json").read_text()), **fields}
    (target / "config.json").write_text(json.dumps(config))
    save_file({EMBEDDING_KEY: embedding}, target / "model.safetensors")
    return target


@pytest.mark.parametrize(
    ("field", "value"), [("vocab_size", 257), ("hidden_size", 128), ("num_hidden_layers", 7)]
)
def test_another_target_is_refused(tmp_path: Path, field: str, value: int) -> None:
    target = target_with(tmp_path, torch.ones(256, 64), **{field: value})
    with pytest.raises(ContractMismatch, match=str(value)) as caught:
        load_drafter(GOLDEN / DRAFTS[0], target)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("embedding", "field"),
    [
        (torch.ones(264, 64), "vocab_size"),
        (torch.ones(256, 32), "hidden_size"),
        (torch.zeros(256, 64), EMBEDDING_KEY),
        (torch.ones(256), EMBEDDING_KEY),
    ],
)
def test_an_embedding_that_does_not_fit_is_refused(
    tmp_path: Path, embedding: torch.Tensor, field: str
) -> None:
    """A padded vocabulary (264 rows for 256 ids) is refused, not cut in silence."""
    with pytest.raises(ContractMismatch) as caught:
        load_drafter(GOLDEN / DRAFTS[0], target_with(tmp_path, embedding))
    assert caught.value.field == field


def test_another_embedding_than_trained_on_is_refused(folder: Path, tmp_path: Path) -> None:
    change_config(folder, "dlite_config.target_embedding_hash", embedding_hash(load_embedding(TARGET)))
    load_drafter(folder, TARGET)
    with pytest.raises(ContractMismatch, match="trained on"):
        load_drafter(folder, target_with(tmp_path, torch.ones(256, 64)))


def test_a_sharded_target_has_the_same_embedding(tmp_path: Path) -> None:
    tensors = load_file(TARGET / "model.safetensors")
    names = sorted(tensors)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in halves.items():
        save_file({name: tensors[name] for name in part}, tmp_path / file)
    weight_map = {name: file for file, part in halves.items() for name in part}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert embedding_hash(load_embedding(tmp_path)) == embedding_hash(load_embedding(TARGET))


def test_the_embedding_hash_is_over_float32_bytes() -> None:
    import hashlib

    embedding = torch.randn(10_000, 3, generator=torch.Generator().manual_seed(0)).half()
    expected = hashlib.sha256(embedding.float().numpy().astype("<f4").tobytes()).hexdigest()
    assert embedding_hash(embedding) == expected


def test_an_untrained_checkpoint_round_trips(tmp_path: Path) -> None:
    config = save_untrained(tmp_path, TARGET, replace(OPTIONS, variable_block=True, anchor_group_size=2))
    assert read_draft_config(tmp_path) == config
    one = load_drafter(tmp_path, TARGET)
    one.self_test()
    assert one.description.variable_block
    assert one.propose([first_rounds("draft_dlite_v1_g2")[0].item])[0].refusal is None
    again = save_untrained(
        tmp_path / "again", TARGET, replace(OPTIONS, variable_block=True, anchor_group_size=2)
    )
    assert again == config
    left, right = load_file(tmp_path / "model.safetensors"), load_file(tmp_path / "again/model.safetensors")
    assert all(torch.equal(left[name], right[name]) for name in left)


def reduced_checkpoint(path: Path, token_ids: torch.Tensor) -> Path:
    config = replace(untrained_config(TARGET, OPTIONS), draft_vocab_size=4)
    save_checkpoint(path, config, initialise(config, 0), token_ids)
    return path


def test_a_reduced_vocabulary_loads(tmp_path: Path) -> None:
    path = reduced_checkpoint(tmp_path, torch.tensor([3, 250, 7, 9]))
    one = load_drafter(path, TARGET)
    one.self_test()
    result = one.propose([first_rounds("draft_dlite_v1_g1")[0].item])[0]
    assert set(result.tokens) <= {3, 250, 7, 9}
    config = read_draft_config(path)
    assert load_model(path, config).sequential_head.output_proj.weight.shape == (4, 8)


@pytest.mark.parametrize("ids", [[3, 250, 7, 256], [3, 250, 7, -1], [3, 3, 7, 9], [1, 2, 3]])
def test_a_wrong_map_is_refused(tmp_path: Path, ids: list[int]) -> None:
    path = reduced_checkpoint(tmp_path, torch.tensor(ids))
    with pytest.raises(ContractMismatch) as caught:
        load_token_ids(path, read_draft_config(path))
    assert caught.value.field == "d2t"


def test_a_law_that_is_the_same_for_every_token_fails_the_self_test(folder: Path) -> None:
    change_tensors(folder, {OUTPUT: torch.ones(256, 8)})
    with pytest.raises(ContractMismatch, match="self-test"):
        load_drafter(folder, TARGET).self_test()
