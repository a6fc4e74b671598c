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

from collections.abc import Callable

import torch
from torch import nn

from protos import half
from protos.half import HalfLinear, half_exponent

TORCH = "torch"
TORCH_FUSED = "torch_fused"
ONEDNN = "onednn"
FBGEMM_FP16 = "fbgemm_fp16"
KERNELS = (TORCH, TORCH_FUSED, ONEDNN, FBGEMM_FP16)

# oneDNN picks its layout for a number of rows; blocks of verification have about that many.
_ONEDNN_ROWS = 4


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


def pack(kernel: str, weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Module:
    """A module computing x @ weight.T + bias by a kernel of `KERNELS`.

    Args:
        weight: [M, N].
        bias: [M] or None.
    """
    kinds: dict[str, Callable[[torch.Tensor, torch.Tensor | None], nn.Module]] = {
        ONEDNN: OnednnLinear,
        FBGEMM_FP16: HalfLinear,
    }
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
    if kernel == FBGEMM_FP16 and not half.is_available():
        return "torch has no fbgemm on this machine"
    return ""


def inexact_in_half(model: nn.Module) -> str:
    """Name of the first matrix that `fbgemm_fp16` would change; empty without one."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and half_exponent(module.weight) is None:
            return str(name)
    return ""
