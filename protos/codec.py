"""Tensors on the wire: raw little-endian bytes with dtype and shape.

numpy has no bfloat16, so values travel as a byte view of the torch tensor. `int8` carries one
float32 scale for each row of the last dimension and halves the feature traffic of a bf16 target.
"""

from __future__ import annotations

import math
import sys

import torch

from protos import common_pb2
from protos.errors import InvalidRequest

if sys.byteorder != "little":  # pragma: no cover
    raise ImportError("the wire format is little-endian; this machine is not")

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "int8": torch.int8}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_INT8_LEVELS = 127.0


def dtype_named(name: str, field: str) -> torch.dtype:
    """The torch dtype of a wire name.

    Raises:
        InvalidRequest: unknown name.
    """
    if name not in DTYPES:
        raise InvalidRequest(f"unknown dtype {name!r}, expected one of {sorted(DTYPES)}", field=field)
    return DTYPES[name]


def _raw_bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    if flat.numel() == 0:
        return b""
    return flat.view(torch.uint8).numpy().tobytes()


def encode(tensor: torch.Tensor, dtype: str | None = None) -> common_pb2.Tensor:
    """Encodes a tensor of any device, layout and shape.

    Args:
        tensor: float values; float64 must name a wire dtype.
        dtype: wire name to convert to; None keeps the tensor's own.
    """
    message = common_pb2.Tensor()
    encode_into(message, tensor, dtype)
    return message


def encode_into(message: common_pb2.Tensor, tensor: torch.Tensor, dtype: str | None = None) -> None:
    """As `encode`, into an empty message that is already part of a larger one: a message that is handed
    to another's constructor is copied with all its data."""
    if dtype == "int8":
        _encode_int8(message, tensor)
        return
    if dtype is not None:
        tensor = tensor.to(dtype_named(dtype, "dtype"))
    if tensor.dtype not in _NAMES:
        raise InvalidRequest(f"{tensor.dtype} has no wire form; name one of {sorted(DTYPES)}")
    message.dtype = _NAMES[tensor.dtype]
    message.shape.extend(tensor.shape)
    message.data = _raw_bytes(tensor)


def _encode_int8(message: common_pb2.Tensor, tensor: torch.Tensor) -> None:
    values = tensor.detach().to(torch.float32)
    if values.dim() == 0:
        raise InvalidRequest("int8 needs a last dimension: its rows carry the scales", field="dtype")
    message.dtype = "int8"
    message.shape.extend(values.shape)
    if values.numel() == 0:
        return
    scales = (values.abs().amax(dim=-1, keepdim=True) / _INT8_LEVELS).clamp_min(1e-12)
    quantised = torch.round(values / scales).clamp(-_INT8_LEVELS, _INT8_LEVELS).to(torch.int8)
    message.data = _raw_bytes(quantised)
    message.scales = _raw_bytes(scales)


def decode(message: common_pb2.Tensor, field: str = "tensor") -> torch.Tensor:
    """Decodes to a fresh, writable CPU tensor; `int8` comes back as float32.

    Raises:
        InvalidRequest: unknown dtype, or data that does not fit the shape.
    """
    dtype = dtype_named(message.dtype, f"{field}.dtype")
    shape = tuple(message.shape)
    count = math.prod(shape)
    data = message.data
    expected_bytes = count * dtype.itemsize
    if len(data) != expected_bytes:
        raise InvalidRequest(
            f"shape {list(shape)} of {message.dtype} needs {expected_bytes} bytes, got {len(data)}",
            field=f"{field}.data",
        )
    if count == 0:
        return torch.empty(shape, dtype=torch.float32 if dtype == torch.int8 else dtype)
    values = torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)
    return _apply_scales(values, message.scales, field) if dtype == torch.int8 else values


def _apply_scales(values: torch.Tensor, scales: bytes, field: str) -> torch.Tensor:
    if values.dim() == 0 or len(scales) != 4 * (values.numel() // values.shape[-1]):
        raise InvalidRequest(
            "int8 needs one float32 scale for each row of the last dimension", field=f"{field}.scales"
        )
    rows = torch.frombuffer(bytearray(scales), dtype=torch.float32)
    return values.to(torch.float32) * rows.reshape(*values.shape[:-1], 1)
