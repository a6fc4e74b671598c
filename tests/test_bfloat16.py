"""Matrix products in bfloat16: what they change, what they leave, and who gets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from protos import bfloat16
from protos.shard_manifest import read_manifest
from protos.shards import open_shards
from target_service.export_job import ExportOptions, export_file
from tests.golden_draft import TARGET

# bfloat16 has 8 bits; a sum of rounded products is off by about half of the last one.
RELATIVE_ERROR = 0.01


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).detach().norm() / expected.detach().norm())


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_is_its_float32_twin_up_to_rounding(bias: bool) -> None:
    torch.manual_seed(0)
    stock = nn.Linear(96, 64, bias=bias)
    x = torch.randn(3, 5, 96)
    found = bfloat16.Bfloat16Linear(stock)(x)
    assert found.dtype is torch.float32
    assert 0 < relative(found, stock(x)) < RELATIVE_ERROR


def test_logits_keep_float32() -> None:
    model = nn.ModuleDict({"inner": nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), "head": nn.Linear(4, 4)})
    bfloat16.use_bfloat16(model, keep="head")
    assert isinstance(model["inner"][0], bfloat16.Bfloat16Linear)
    assert type(model["head"]) is nn.Linear


def test_fast_export_says_so_and_keeps_the_states_nearly(tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    line = {"source": "a", "temperature": 0.0, "prompt_len": 4, "ids": list(range(3, 40))}
    file.write_text(json.dumps(line) + "\n")
    rows = {}
    for matrices in ("", "bfloat16"):
        out = tmp_path / f"out{matrices}"
        options = ExportOptions(str(TARGET), 4, feature_dtype="float32", matrices=matrices)
        export_file(file, out, options, lambda items, total, done: iter(items))
        assert read_manifest(out).matrices == matrices
        rows[matrices] = open_shards(out)[1][0].sequence(0)
    assert 0 < relative(rows["bfloat16"].features, rows[""].features) < 3 * RELATIVE_ERROR
    assert torch.allclose(rows["bfloat16"].log_normalisers, rows[""].log_normalisers, atol=0.05)
