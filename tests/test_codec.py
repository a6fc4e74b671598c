"""Tensors on the wire (pitfalls F9)."""

from __future__ import annotations

import pytest
import torch

from protos import codec, common_pb2
from protos.errors import InvalidRequest

FLOATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
SHAPES = [(), (0,), (3, 0), (1,), (7,), (4, 5), (2, 3, 4)]


def random_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


def through_bytes(message: common_pb2.Tensor) -> common_pb2.Tensor:
    return common_pb2.Tensor.FromString(message.SerializeToString())


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_floats_come_back_bit_equal(name: str, shape: tuple[int, ...]) -> None:
    tensor = random_tensor(shape, FLOATS[name])
    back = codec.decode(through_bytes(codec.encode(tensor)))
    assert back.dtype == tensor.dtype
    assert back.shape == tensor.shape
    assert torch.equal(back, tensor)


@pytest.mark.parametrize("name", FLOATS)
def test_special_values_keep_their_bits(name: str) -> None:
    tensor = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-40], dtype=FLOATS[name])
    back = codec.decode(codec.encode(tensor))
    assert torch.equal(back.view(torch.uint8), tensor.view(torch.uint8))


@pytest.mark.parametrize("name", [*FLOATS, "int8"])
def test_layout_does_not_matter(name: str) -> None:
    base = random_tensor((6, 8), torch.float32).to(FLOATS.get(name, torch.float32))
    for view in (base.T, base[::2, 1::3], base[:, None].expand(6, 4, 8), base.flip(0)):
        from_view = codec.encode(view, name)
        from_copy = codec.encode(view.clone(memory_format=torch.contiguous_format), name)
        assert from_view == from_copy


def test_values_are_little_endian_bytes_in_row_order() -> None:
    message = codec.encode(torch.tensor([[1.0, -2.0]], dtype=torch.bfloat16))
    assert (message.dtype, list(message.shape), message.data) == ("bf16", [1, 2], b"\x80\x3f\x00\xc0")


def test_a_decoded_tensor_may_be_written_to() -> None:
    message = codec.encode(torch.ones(3))
    codec.decode(message).zero_()
    assert torch.equal(codec.decode(message), torch.ones(3))


def test_encoding_may_convert() -> None:
    tensor = torch.tensor([1.0, 1 / 3], dtype=torch.float64)
    assert torch.equal(codec.decode(codec.encode(tensor, "f16")), tensor.to(torch.float16))


def test_a_tensor_that_needs_gradients_is_sent() -> None:
    tensor = torch.ones(2, requires_grad=True)
    assert torch.equal(codec.decode(codec.encode(tensor)), torch.ones(2))


@pytest.mark.parametrize("shape", [(1,), (5,), (4, 16), (2, 3, 8)], ids=str)
def test_int8_is_within_half_a_step_of_each_row(shape: tuple[int, ...]) -> None:
    tensor = random_tensor(shape, torch.float32)
    back = codec.decode(through_bytes(codec.encode(tensor, "int8")))
    step = tensor.abs().amax(dim=-1, keepdim=True) / 127
    assert back.dtype == torch.float32
    assert back.shape == tensor.shape
    assert bool(((back - tensor).abs() <= step * 0.501).all())


def test_int8_keeps_a_zero_row_and_does_not_mix_rows() -> None:
    tensor = torch.tensor([[0.0, 0.0], [1e-6, -1e-6], [1e6, 0.0]])
    back = codec.decode(codec.encode(tensor, "int8"))
    assert torch.allclose(back, tensor, rtol=1e-6, atol=0)


def test_int8_halves_a_bf16_row() -> None:
    tensor = random_tensor((8, 576), torch.float32)
    as_int8, as_bf16 = codec.encode(tensor, "int8"), codec.encode(tensor, "bf16")
    assert len(as_int8.data) + len(as_int8.scales) < 0.51 * len(as_bf16.data)


def refused(**changes: object) -> InvalidRequest:
    message = codec.encode(torch.ones(2, 3), str(changes.pop("encoded_as", "f32")))
    for name, value in changes.items():
        if name == "shape":
            del message.shape[:]
            message.shape.extend(value)  # type: ignore[arg-type]
        else:
            setattr(message, name, value)
    with pytest.raises(InvalidRequest) as caught:
        codec.decode(message, "items.features")
    return caught.value


@pytest.mark.parametrize("shape", [(2, 2), (7,), (2, 3, 2), (), (0,), (2**31, 2**31)], ids=str)
def test_data_that_does_not_fit_the_shape_is_refused(shape: tuple[int, ...]) -> None:
    error = refused(shape=shape)
    assert error.field == "items.features.data"
    assert "24" in str(error)  # the size it got


@pytest.mark.parametrize("num_bytes", [0, 23, 25])
def test_truncated_or_padded_data_is_refused(num_bytes: int) -> None:
    assert refused(data=b"\0" * num_bytes).field == "items.features.data"


@pytest.mark.parametrize("dtype", ["", "f64", "F32", "float32", "int8 "])
def test_an_unknown_dtype_is_refused_by_name(dtype: str) -> None:
    error = refused(dtype=dtype)
    assert error.field == "items.features.dtype"
    assert repr(dtype) in str(error)


@pytest.mark.parametrize("scales", [b"", b"\0" * 4, b"\0" * 12])
def test_int8_with_the_wrong_number_of_scales_is_refused(scales: bytes) -> None:
    assert refused(encoded_as="int8", scales=scales).field == "items.features.scales"


def test_float64_has_no_wire_form_of_its_own() -> None:
    with pytest.raises(InvalidRequest, match="float64"):
        codec.encode(torch.zeros(1, dtype=torch.float64))


@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 2)], ids=str)
def test_int8_of_nothing_is_nothing(shape: tuple[int, ...]) -> None:
    back = codec.decode(through_bytes(codec.encode(torch.empty(shape), "int8")))
    assert (back.dtype, back.shape) == (torch.float32, shape)


def test_int8_needs_rows() -> None:
    with pytest.raises(InvalidRequest, match="last dimension"):
        codec.encode(torch.tensor(0.5), "int8")
