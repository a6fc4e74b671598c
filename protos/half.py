"""fbgemm's matrix product: weights packed as float16, inputs, products and sums in float32, on the CPU.

It reads half the bytes of a float32 product, which is what a step of a few rows takes its time for.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from protos.layers import swap_linear

# 2**15 is the largest power of two in float16; one binade is kept free for the largest mantissa.
_MAX_EXPONENT = 15


def is_available() -> bool:
    """Whether torch has fbgemm on this machine."""
    return "fbgemm" in torch.backends.quantized.supported_engines


class HalfLinear(nn.Module):
    """x @ weight.T + bias, [.., N] -> [.., M]; a row's result does not depend on its neighbours.

    Args:
        weight: [M, N].
        bias: [M] or None.
        may_round: weights that are not exact in float16 are rounded to it.

    Raises:
        ValueError: the weights are not exact in float16, and must be.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, may_round: bool = False) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        exponent = half_exponent(weight)
        if exponent is None:
            if not may_round:
                raise ValueError("the weights are not exact in float16")
            exponent = _fitting_exponent(weight)
        # Scaling by a power of two changes no mantissa, before the product or after it.
        self._descale = 2.0**-exponent if exponent else None
        scaled = weight * 2.0**exponent if exponent else weight
        self._bias = bias if exponent else None
        self._packed = torch.ops.quantized.linear_prepack_fp16(scaled, None if exponent else bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.quantized.linear_dynamic_fp16.default(x, self._packed)
        if self._descale is not None:
            result *= self._descale
            if self._bias is not None:
                result += self._bias
        return result


def half_exponent(weight: torch.Tensor) -> int | None:
    """An exponent e for which weight * 2**e is exact in float16 (0 if it can be); None without one.

    bfloat16 checkpoints have small weights below float16's range, but seldom a range wider than it.
    """
    weight = weight.detach()
    if not bool(torch.isfinite(weight).all()):
        return None
    for exponent in dict.fromkeys((0, _fitting_exponent(weight))):
        scaled = weight * 2.0**exponent
        if bool((scaled.half().to(weight.dtype) == scaled).all()):
            return exponent
    return None


def _fitting_exponent(weight: torch.Tensor) -> int:
    """That carries the largest weight just below float16's largest number."""
    largest = float(weight.abs().max()) if weight.numel() else 0.0
    return _MAX_EXPONENT - math.frexp(largest)[1] if largest else 0


def use_half(model: nn.Module) -> None:
    """Swaps the linear layers of a float32 model in place, rounding their weights to float16."""
    swap_linear(model, _rounded)


def _rounded(stock: nn.Linear) -> HalfLinear:
    bias = None if stock.bias is None else stock.bias.detach()
    return HalfLinear(stock.weight.detach(), bias, may_round=True)
