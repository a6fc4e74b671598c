"""The GPU check runs whole on a CPU with a tiny model, so that it will run where it counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from deploy.gpu.check import run_sections
from deploy.gpu.models import SIZES, random_model, weight_bytes
from deploy.gpu.parity import flash_difference
from tests.test_flash_kv import slow_varlen

ROOT = Path(__file__).parent.parent
CPU = torch.device("cpu")


def test_the_script_runs_on_a_cpu(tmp_path: Path) -> None:
    environment = {**os.environ, "OUT": str(tmp_path), "PYTHON": sys.executable}
    command = [str(ROOT / "deploy/gpu/check.sh"), "--device", "cpu", "--sizes", "tiny"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "gpu.json").read_text())
    assert result["passed"] is True
    tiny = result["results"]["tiny"]
    assert [check["mismatches"] for check in tiny["parity"]["float32"]] == [0, 0]
    for kernel in ("torch", "torch_fused"):
        assert [row["batch"] for row in tiny["speed"][kernel]["verify_cost"]] == [1, 2]
        assert tiny["speed"][kernel]["run"][1]["tokens_per_second"] > 0
    assert tiny["library"]["tokens_per_second"] > 0


def test_sections_after_the_budget_are_named() -> None:
    results = run_sections(["tiny"], CPU, budget_seconds=-1.0)
    assert results["tiny"]["parity"].startswith("skipped")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_flash_comparison_by_the_slow_twin(dtype: torch.dtype) -> None:
    size = SIZES["tiny"]
    result = flash_difference(size, random_model(size, dtype, CPU), slow_varlen)
    assert result["passed"]


def test_weight_bytes_leave_out_the_embedding_table() -> None:
    model = random_model(SIZES["tiny"], torch.float32, CPU)
    total = sum(parameter.nbytes for parameter in model.parameters())
    assert weight_bytes(model) == total - 199 * 64 * 4
