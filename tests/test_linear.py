"""Every matrix kernel equals torch's product; float16 packing only where it is exact.

Tolerances: float32 sums of 576 to 1,536 products of order 1 differ by their order of summation by
some 5e-6 (measured 4.6e-6 against float64), a float16 copy of float32 weights by 1e-2.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from target_service import linear

SUM_ORDER = 2e-5
ROWS = (1, 2, 3, 4, 5, 8, 33)
# SmolLM2: q, k, v in one; gate and up in one; down; o.
SHAPES = ((960, 576), (3072, 576), (576, 1536), (576, 576))
PACKED = (linear.TORCH_FUSED, linear.ONEDNN, linear.FBGEMM_FP16)


def half_weights(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    """Weights as SmolLM2's are stored: float16 values in a float32 tensor."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, columns, generator=generator) * 0.05).half().float()


@pytest.fixture(params=PACKED)
def kernel(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if reason := linear.unavailable(name, torch.float32, torch.device("cpu")):
        pytest.skip(reason)
    return name


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_kernels_equal_the_float64_product(kernel: str, shape: tuple[int, int], has_bias: bool) -> None:
    weight = half_weights(*shape)
    bias = torch.linspace(-1, 1, shape[0]) if has_bias else None
    packed = linear.pack(kernel, weight, bias)
    for rows in ROWS:
        x = torch.randn(1, rows, shape[1], generator=torch.Generator().manual_seed(rows))
        expected = x.double() @ weight.double().t() + (0 if bias is None else bias.double())
        assert packed(x).shape == (1, rows, shape[0])
        assert (packed(x).double() - expected).abs().max() < SUM_ORDER


def test_half_rows_do_not_depend_on_their_neighbours() -> None:
    # A1, A2: with this kernel a row of a verification has the very numbers of plain decoding.
    packed = linear.pack(linear.FBGEMM_FP16, half_weights(960, 576), None)
    x = torch.randn(33, 576, generator=torch.Generator().manual_seed(1))
    whole = packed(x)
    for rows in ROWS:
        assert torch.equal(packed(x[:rows]), whole[:rows])


def test_half_keeps_every_float16_value_and_reads_strided_inputs() -> None:
    values = torch.tensor([[2.0**-24, 65504.0, -3 * 2.0**-24, 0.1, 0.0]]).half().float()
    packed = linear.pack(linear.FBGEMM_FP16, values, None)
    assert torch.equal(packed(torch.eye(5)).t(), values)
    strided = torch.eye(10)[::2, ::2]
    assert torch.equal(packed(strided).t(), values)


def test_bfloat16_weights_are_packed_under_a_power_of_two() -> None:
    # Small bfloat16 weights lie below float16's range; scaled, they are exact.
    weight = half_weights(64, 96).bfloat16().float() * 2.0**-12
    weight[3, 5] = 2.0**-30
    exponent = linear.half_exponent(weight)
    assert exponent is not None
    assert exponent > 0
    packed = linear.pack(linear.FBGEMM_FP16, weight, torch.ones(64))
    assert torch.equal(packed(torch.eye(96)), weight.t() + 1)


@pytest.mark.parametrize(
    "weight",
    [
        torch.tensor([[1.0 + 2.0**-12]]),  # a mantissa of more than 11 bits
        torch.tensor([[1.0, 2.0**-40]]),  # wider than float16's range
        torch.tensor([[float("inf")]]),
        torch.tensor([[1 / 3]], dtype=torch.float64),
    ],
)
def test_weights_that_float16_would_change_are_refused(weight: torch.Tensor) -> None:
    assert linear.half_exponent(weight) is None
    with pytest.raises(ValueError, match="not exact"):
        linear.pack(linear.FBGEMM_FP16, weight, None)


def test_exponents() -> None:
    assert linear.half_exponent(torch.zeros(2, 2)) == 0
    assert linear.half_exponent(torch.full((2, 2), 0.5)) == 0
    assert linear.half_exponent(torch.full((2, 2), 2.0**20)) == -6


def test_the_first_inexact_matrix_is_named() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with torch.no_grad():
        model[0].weight.fill_(0.5)
        model[1].weight.fill_(1 / 3)
    assert linear.inexact_in_half(model) == "1"
    with torch.no_grad():
        model[1].weight.fill_(0.25)
    assert linear.inexact_in_half(model) == ""


def test_unavailable() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert "one of torch" in linear.unavailable("fast", torch.float32, cpu)
    assert "float64" in linear.unavailable(linear.FBGEMM_FP16, torch.float64, cpu)
    assert "cuda" in linear.unavailable(linear.ONEDNN, torch.float32, cuda)
    assert linear.unavailable(linear.TORCH_FUSED, torch.bfloat16, cuda) == ""
