"""Tables in int8: small, exactly their dequantised twin when served, and refused when malformed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from draft_service import row_scales
from draft_service.checkpoint import DraftCheckpointConfig, read_draft_config
from draft_service.loader import load_drafter
from draft_service.model import DraftModel
from draft_service.proposal import DraftItem, DraftMode
from draft_service.row_scales import SUFFIX, TABLES, quantise
from draft_service.untrained import UntrainedOptions, initialise, untrained_config
from draft_service.weights import load_model, load_token_ids, save_checkpoint, save_compact
from protos.errors import ContractMismatch
from tests.golden_draft import TARGET

OPTIONS = UntrainedOptions(mask_token_id=255, num_tapped=4, num_layers=1)
EMBEDDING, OUTPUT = TABLES


def made(reduced: bool) -> tuple[DraftCheckpointConfig, DraftModel, torch.Tensor | None]:
    config = untrained_config(TARGET, OPTIONS)
    if not reduced:
        return config, initialise(config, 0), None
    config = replace(config, draft_vocab_size=100)
    return config, initialise(config, 0), torch.arange(0, 200, 2)


@pytest.fixture
def compact(tmp_path: Path) -> Path:
    save_compact(tmp_path / "compact", *made(reduced=True))
    return tmp_path / "compact"


def test_no_value_is_off_by_more_than_half_a_scale() -> None:
    matrix = torch.randn(50, 16, generator=torch.Generator().manual_seed(0))
    matrix[3] = 0.0
    matrix[4] *= 1e-6
    values, scales = quantise(matrix)
    assert values.dtype == torch.int8
    error = (row_scales.dequantise(values, scales) - matrix).abs()
    assert bool((error <= 0.5001 * scales[:, None]).all())
    assert not bool(values[3].any())
    assert int(values.abs().max()) == 127


def test_what_is_quantised_once_is_stored_without_loss() -> None:
    """So that shipping a shipped drafter again changes nothing."""
    matrix = row_scales.dequantise(*quantise(torch.randn(40, 8, generator=torch.Generator().manual_seed(1))))
    values, scales = quantise(matrix)
    assert torch.allclose(row_scales.dequantise(values, scales), matrix, rtol=1e-6, atol=0)


def test_tables_are_expanded_row_by_row(tmp_path: Path) -> None:
    """Against a slow twin: every row by itself."""
    config, model, _ = made(reduced=False)
    save_compact(tmp_path, config, model)
    loaded = load_model(tmp_path, config).state_dict()
    for name in TABLES:
        for row, got in zip(model.state_dict()[name], loaded[name], strict=True):
            scale = row.abs().max() / 127
            assert torch.equal(got, (row / scale).round() * scale)


@pytest.mark.parametrize("reduced", [False, True])
def test_proposals_are_those_of_the_dequantised_twin(tmp_path: Path, reduced: bool) -> None:
    config, model, token_ids = made(reduced)
    save_compact(tmp_path / "compact", config, model, token_ids)
    twin = load_model(tmp_path / "compact", config)
    save_checkpoint(tmp_path / "twin", config, twin, token_ids)
    assert torch.equal(
        load_token_ids(tmp_path / "compact", config), load_token_ids(tmp_path / "twin", config)
    )
    small, large = (load_drafter(tmp_path / name, TARGET) for name in ("compact", "twin"))
    generator = torch.Generator().manual_seed(2)
    items = [
        DraftItem(
            request_id=str(n),
            recent_tokens=(int(torch.randint(256, (1,), generator=generator)),),
            features=torch.randn(4, 64, generator=generator),
            position=10 + n,
            k=1 + n % config.num_proposals,
            mode=DraftMode.COUPLED if n % 2 else DraftMode.GREEDY,
            key=bytes([n]) * 16,
            temperature=float(n % 2),
        )
        for n in range(12)
    ]
    for a, b in zip(small.propose(items), large.propose(items), strict=True):
        assert (a.tokens, a.probabilities, a.refusal) == (b.tokens, b.probabilities, None)


def test_the_tables_are_int8_and_the_rest_float16(compact: Path) -> None:
    tensors = load_file(compact / "model.safetensors")
    assert {name for name, tensor in tensors.items() if tensor.dtype == torch.int8} == set(TABLES)
    others = set(tensors) - set(TABLES) - {name + SUFFIX for name in TABLES} - {"d2t"}
    assert {tensors[name].dtype for name in others} == {torch.float16}
    assert tensors[OUTPUT].shape == (100, 8)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({OUTPUT + SUFFIX: None}, OUTPUT + SUFFIX),
        ({OUTPUT + SUFFIX: torch.ones(99)}, OUTPUT + SUFFIX),
        ({OUTPUT + SUFFIX: torch.ones(100, 1)}, OUTPUT + SUFFIX),
        ({OUTPUT + SUFFIX: torch.ones(100, dtype=torch.float16)}, OUTPUT + SUFFIX),
        ({OUTPUT + SUFFIX: torch.full((100,), float("nan"))}, OUTPUT + SUFFIX),
        ({OUTPUT + SUFFIX: torch.zeros(100)}, OUTPUT + SUFFIX),
        ({OUTPUT + SUFFIX: -torch.ones(100)}, OUTPUT + SUFFIX),
        ({OUTPUT: torch.ones(100, 8)}, OUTPUT + SUFFIX),
        ({EMBEDDING: torch.full((256, 8), -128, dtype=torch.int8)}, EMBEDDING),
        ({OUTPUT: torch.zeros(100, 8, dtype=torch.int8)}, OUTPUT),
        ({OUTPUT: torch.ones(101, 8, dtype=torch.int8)}, OUTPUT),
        ({OUTPUT: torch.ones(100, 8, dtype=torch.uint8)}, OUTPUT + SUFFIX),
        ({"norm.weight": torch.ones(64, dtype=torch.int8)}, "norm.weight"),
        ({"norm.weight" + SUFFIX: torch.ones(64)}, "norm.weight" + SUFFIX),
    ],
    ids=str,
)
def test_malformed_tables_are_refused(compact: Path, changes: dict[str, Any], field: str) -> None:
    tensors = {**load_file(compact / "model.safetensors"), **changes}
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, compact / "model.safetensors")
    with pytest.raises(ContractMismatch) as caught:
        load_model(compact, read_draft_config(compact))
    assert caught.value.field == field
