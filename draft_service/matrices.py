"""What a drafter multiplies in. Fewer bits change the speed of text and not the text, which is verified.

float32    torch's product
float16    fbgemm's: weights rounded to float16, all else float32; the fastest for a few rows
bfloat16   weights and inputs rounded, of the backbone alone: rounded to 8 bits, logits would tie
"""

from __future__ import annotations

import torch
from torch import nn

from draft_service.config import Matrices
from protos import half
from protos.bfloat16 import use_bfloat16
from protos.errors import InvalidRequest

# The layer that makes the logits.
_OUTPUT = "output_proj"


def chosen(matrices: Matrices, device: str = "cpu") -> Matrices:
    """Auto is the fastest that this machine's CPU has, and float32 where something else computes.

    Raises:
        InvalidRequest: float16 where there is no kernel for it.
    """
    is_cpu = torch.device(device).type == "cpu"
    if matrices == "float16" and not (is_cpu and half.is_available()):
        raise InvalidRequest(
            "float16 is a kernel of fbgemm, for CPUs: use auto, which takes what is there", field="matrices"
        )
    if matrices != "auto":
        return matrices
    if not is_cpu:
        return "float32"
    if half.is_available():
        return "float16"
    capabilities = torch.cpu.get_capabilities()
    return "bfloat16" if capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") else "float32"


def use(model: nn.Module, matrices: Matrices) -> None:
    """Swaps the layers of a drafter in place. `matrices` is not "auto"."""
    if matrices == "float16":
        half.use_half(model)
    elif matrices == "bfloat16":
        use_bfloat16(model, keep=_OUTPUT)
