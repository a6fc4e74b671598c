"""The kernel is told or measured once for a model and a machine, and never an inexact one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from protos.errors import InvalidRequest
from target_service import kernel_choice, linear
from target_service.build import assemble
from target_service.config import TargetConfig
from target_service.loader import from_model
from tests.fakes import GOLDEN, tiny_target
from tests.test_fused import half_target


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


class Measured:
    """Set times; counts how often it was asked."""

    def __init__(self, **seconds: float) -> None:
        self.seconds = seconds
        self.asked: list[list[str]] = []

    def __call__(self, model: PreTrainedModel, kernels: list[str]) -> dict[str, float]:
        self.asked.append(kernels)
        return {kernel: self.seconds[kernel] for kernel in kernels if kernel in self.seconds}


def test_the_fastest_is_chosen_and_remembered() -> None:
    measured = Measured(torch_fused=3.0, onednn=1.0, fbgemm_fp16=2.0)
    model = half_target()
    for _ in range(2):
        assert kernel_choice.choose("auto", model, "one", 1, measured) == linear.ONEDNN
    assert len(measured.asked) == 1
    kernel_choice.choose("auto", model, "other", 1, measured)
    kernel_choice.choose("auto", model, "one", 2, measured)
    assert len(measured.asked) == 3


def test_an_inexact_model_never_gets_float16() -> None:
    measured = Measured(torch_fused=3.0, onednn=2.0, fbgemm_fp16=1.0)
    model = tiny_target(dtype=torch.float32)
    assert kernel_choice.choose("auto", model, "one", 1, measured) == linear.ONEDNN
    assert linear.FBGEMM_FP16 not in measured.asked[0]
    with pytest.raises(InvalidRequest, match="not exact in float16"):
        kernel_choice.choose(linear.FBGEMM_FP16, model, "one", 1)


def test_other_dtypes_keep_the_stock_modules() -> None:
    assert kernel_choice.choose("auto", tiny_target(), "one", 1, Measured()) == linear.TORCH
    with pytest.raises(InvalidRequest, match="float64"):
        kernel_choice.choose(linear.ONEDNN, tiny_target(), "one", 1)


def test_an_unreadable_cache_is_measured_again(tmp_path: Path) -> None:
    (tmp_path / "dlite").mkdir()
    (tmp_path / "dlite" / "linear_kernels.json").write_text("{")
    measured = Measured(torch_fused=1.0)
    assert kernel_choice.choose("auto", half_target(), "one", 1, measured) == linear.TORCH_FUSED


def test_measuring_times_every_kernel_and_keeps_the_thread_count() -> None:
    threads = torch.get_num_threads()
    seconds = kernel_choice.measure_kernels(half_target(), list(linear.KERNELS))
    assert set(seconds) == set(linear.KERNELS) - {linear.TORCH}
    assert min(seconds.values()) > 0
    kernel_choice.choose("auto", half_target(), "one", 2, Measured(torch_fused=1.0))
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("kernel", [linear.TORCH, linear.TORCH_FUSED, linear.FBGEMM_FP16])
def test_describe_names_the_kernel(kernel: str) -> None:
    config = TargetConfig.load(None, target="tiny", num_pages=8, num_tapped_layers=3, linear_kernel=kernel)
    built = assemble(from_model(half_target(), GOLDEN / "target_qwen3"), config)
    assert built.description.linear_kernel == kernel
