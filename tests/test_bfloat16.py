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
from tests.golden_draft import DRAFTS, GOLDEN, TARGET, drafter, first_rounds, load_drafter

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


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [({"avx512_bf16": True}, "bfloat16"), ({"amx_bf16": True}, "bfloat16"), ({"avx2": True}, "float32")],
)
def test_auto_is_what_the_processor_has(
    capabilities: dict[str, bool], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert bfloat16.chosen("auto") == expected
    assert bfloat16.chosen("auto", "cuda:0") == "float32"
    assert bfloat16.chosen("float32") == "float32"
    assert bfloat16.chosen("bfloat16") == "bfloat16"


@pytest.mark.parametrize("name", DRAFTS)
def test_a_drafter_in_bfloat16_thinks_nearly_the_same(name: str) -> None:
    fast = load_drafter(GOLDEN / name, TARGET, matrices="bfloat16")
    fast.self_test()
    for golden in first_rounds(name):
        hidden, _ = fast.encode([golden.item])
        expected, _ = drafter(name).encode([golden.item])
        assert 0 < relative(hidden, expected) < 3 * RELATIVE_ERROR
        (result,) = fast.propose([golden.item])
        assert len(result.tokens) == len(golden.proposals)


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
