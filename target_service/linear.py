"""Matrix kernels behind one call: `pack(kernel, weight, bias)` returns a module that maps x to
x @ weight.T + bias.

    torch         the library's modules as they are, nothing is swapped (the slow twin)
    torch_fused   torch's own product of the fused matrices (see `fused`)
    onednn        float32 weights in oneDNN's blocked layout
    fbgemm_fp16   weights packed as float16, products and sums in float32

`fbgemm_fp16` is exact up to the order of summation, because it packs only matrices that a power of
two carries into float16 without loss; a model with any other matrix does not get it.

Shapes: N inputs, M outputs of a matrix [M, N].
"""

from __future__ import annotations

import math

import torch
from torch import nn

TORCH = "torch"
TORCH_FUSED = "torch_fused"
ONEDNN = "onednn"
FBGEMM_FP16 = "fbgemm_fp16"
KERNELS = (TORCH, TORCH_FUSED, ONEDNN, FBGEMM_FP16)

# oneDNN picks its layout for a number of rows; blocks of verification have about that many.
_ONEDNN_ROWS = 4
# 2**15 is the largest power of two in float16; one binade is kept free for the largest mantissa.
_MAX_EXPONENT = 15


class TorchLinear(nn.Module):
    """torch's product."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.weight = nn.Buffer(weight, persistent=False)
        self.bias = None if bias is None else nn.Buffer(bias, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight, self.bias)


class OnednnLinear(nn.Module):
    """oneDNN's product with its own layout of the weights."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ONEDNN_ROWS)
        self._bias = bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        multiply = torch.ops.mkldnn._linear_pointwise.default
        result: torch.Tensor = multiply(x, self._packed, self._bias, "none", [], "")
        return result


class HalfLinear(nn.Module):
    """fbgemm's product with packed float16 weights; a row's result does not depend on its neighbours.

    Raises:
        ValueError: the weights are not exact in float16.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        exponent = half_exponent(weight)
        if exponent is None:
            raise ValueError("the weights are not exact in float16")
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
    largest = float(weight.abs().max()) if weight.numel() else 0.0
    if not math.isfinite(largest):
        return None
    scale_up = _MAX_EXPONENT - math.frexp(largest)[1] if largest else 0
    for exponent in dict.fromkeys((0, scale_up)):
        scaled = weight * 2.0**exponent
        if bool((scaled.half().to(weight.dtype) == scaled).all()):
            return exponent
    return None


def pack(kernel: str, weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Module:
    """A module computing x @ weight.T + bias by a kernel of `KERNELS`.

    Args:
        weight: [M, N].
        bias: [M] or None.
    """
    kinds = {ONEDNN: OnednnLinear, FBGEMM_FP16: HalfLinear}
    return kinds.get(kernel, TorchLinear)(weight, bias)


def unavailable(kernel: str, dtype: torch.dtype, device: torch.device) -> str:
    """Why a kernel cannot be used on this machine; empty when it can."""
    if kernel not in KERNELS:
        return f"unknown; one of {', '.join(KERNELS)}"
    if kernel in (TORCH, TORCH_FUSED):
        return ""
    if device.type != "cpu" or dtype != torch.float32:
        return f"for float32 on the CPU only, not {str(dtype).removeprefix('torch.')} on {device.type}"
    if kernel == ONEDNN and not torch.backends.mkldnn.is_available():
        return "torch is built without oneDNN"
    if kernel == FBGEMM_FP16 and "fbgemm" not in torch.backends.quantized.supported_engines:
        return "torch has no fbgemm on this machine"
    return ""


def inexact_in_half(model: nn.Module) -> str:
    """Name of the first matrix that `fbgemm_fp16` would change; empty without one."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and half_exponent(module.weight) is None:
            return str(name)
    return ""
