"""Matrices of a checkpoint as int8 with one scale a row: a quarter of float32's bytes.

    matrix[i] = scale[i] * values[i],  values in -127..127

Only the two tables of the sequential head are stored so (their rows are tokens, and each row has a
range of its own); they are most of a small drafter. A table NAME then comes with NAME.row_scale.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from draft_service.tensor_folder import TensorFolder
from protos.errors import ContractMismatch

SUFFIX = ".row_scale"
TABLES = ("sequential_head.prev_token_embedding.weight", "sequential_head.output_proj.weight")
SCALE_KEYS = frozenset(name + SUFFIX for name in TABLES)
_LARGEST = 127


def quantise(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Values [N, R] int8 and scales [N] float32 of a float matrix [N, R]; no value is off by more than
    half a scale."""
    values = matrix.detach().to("cpu", torch.float32)
    largest = values.abs().amax(dim=1)
    scales = torch.where(largest > 0, largest / _LARGEST, torch.ones_like(largest))
    rounded = (values / scales[:, None]).round().clamp(-_LARGEST, _LARGEST)
    return rounded.to(torch.int8), scales


def dequantise(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The float32 matrix [N, R]."""
    return values.to(torch.float32) * scales[:, None]


def compacted(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A checkpoint's tensors for shipping: the tables in int8, everything else in float16."""
    stored: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if name in TABLES:
            stored[name], stored[name + SUFFIX] = quantise(tensor)
        else:
            stored[name] = tensor.detach().to("cpu", torch.float16).contiguous()
    return stored


def load_table(folder: TensorFolder, name: str, values: torch.Tensor) -> torch.Tensor:
    """The float32 matrix of int8 values [N, R] that are stored under a name.

    Raises:
        ContractMismatch: the tensor is none of the tables, or its scales are missing, of another size,
            or not all positive and finite.
    """
    if name not in TABLES:
        raise ContractMismatch("int8 values, which only the tables of the sequential head may be", field=name)
    key = name + SUFFIX
    scales = folder.load(key)
    if scales.dtype != torch.float32 or tuple(scales.shape) != (len(values),):
        raise ContractMismatch(
            f"{scales.dtype} {list(scales.shape)}, expected {len(values)} float32 scales", field=key
        )
    if not bool((torch.isfinite(scales) & (scales > 0)).all()):
        raise ContractMismatch("scales that are not all positive and finite", field=key)
    if bool((values < -_LARGEST).any()):
        raise ContractMismatch(f"a value below -{_LARGEST}, which nothing is stored as", field=name)
    return dequantise(values, scales)


def refuse_lonely_scales(folder: TensorFolder, int8_tables: Iterable[str]) -> None:
    """Raises:
    ContractMismatch: there are scales of a table that is not int8: one of the two is not meant.
    """
    lonely = sorted((folder.keys & SCALE_KEYS) - {name + SUFFIX for name in int8_tables})
    if lonely:
        raise ContractMismatch("row scales of a table that is not int8", field=lonely[0])
