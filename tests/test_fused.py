"""Swapped modules compute what the library's do: in float64 to rounding, in float32 the same ids.

The float64 runs take every architecture through `torch_fused`; the packed kernels exist for
float32 only and are compared by ids, a difference excused by a near-tie of the stock model.
"""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel

from target_service import fused, linear
from target_service.model import TargetModel, self_test_logits
from tests.fakes import ARCHITECTURES, Driver, params, plain_greedy, tiny_engine, tiny_target

PROMPT = [(7 * i + i * i) % 61 for i in range(40)]
NEAR_TIE = 1e-3
PACKED = (linear.TORCH_FUSED, linear.ONEDNN, linear.FBGEMM_FP16)


def half_target(architecture: str = "llama", *, tied: bool = False) -> PreTrainedModel:
    """A float32 target whose weights are float16 values."""
    model = tiny_target(architecture, dtype=torch.float32, tied=tied)
    for parameter in model.parameters():
        parameter.copy_(parameter.half().float())
    return model


def drafted_ids(model: PreTrainedModel, reference: list[int]) -> list[int]:
    """Ids of rounds whose proposals are right for 0, 1, 2 and 3 tokens in turn."""
    driver = Driver(tiny_engine(model))
    driver.open(PROMPT, params(len(reference)))
    number = 0
    while driver.finish_reason is None:
        at, right = len(driver.generated), number % 4
        driver.verify([*reference[at : at + right], *[60] * (3 - right)])
        number += 1
    return driver.generated


def assert_equal_up_to_near_ties(stock: PreTrainedModel, expected: list[int], got: list[int]) -> None:
    for index, (a, b) in enumerate(zip(expected, got, strict=True)):
        if a == b:
            continue
        tokens = torch.tensor([[*PROMPT, *expected[:index]]])
        best = stock(tokens).logits[0, -1].topk(2).values
        assert best[0] - best[1] < NEAR_TIE
        return


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("tied", [False, True])
def test_fused_modules_in_float64(architecture: str, tied: bool) -> None:
    reference = plain_greedy(tiny_target(architecture, tied=tied), PROMPT, 24)
    model = tiny_target(architecture, tied=tied)
    stock = self_test_logits(model)
    fused.install(model, linear.TORCH_FUSED)
    assert type(model.model.layers[0].self_attn) is fused.FusedAttention
    assert type(model.model.layers[0].mlp) is fused.FusedMLP
    TargetModel(model, (0, 2), 4, 16).self_test(stock)
    assert drafted_ids(model, reference) == reference


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kernel", PACKED)
def test_packed_kernels_give_the_stock_ids(architecture: str, kernel: str) -> None:
    if reason := linear.unavailable(kernel, torch.float32, torch.device("cpu")):
        pytest.skip(reason)
    stock = half_target(architecture)
    reference = plain_greedy(stock, PROMPT, 24)
    model = half_target(architecture)
    fused.install(model, kernel)
    assert_equal_up_to_near_ties(stock, reference, drafted_ids(model, reference))


def test_a_tied_head_is_packed_and_the_embedding_keeps_its_table() -> None:
    model = half_target(tied=True)
    table = model.get_input_embeddings().weight.clone()
    fused.install(model, linear.FBGEMM_FP16)
    assert isinstance(model.lm_head, linear.HalfLinear)
    assert torch.equal(model.get_input_embeddings().weight, table)
    matrices = [name for name, parameter in model.named_parameters() if parameter.ndim == 2]
    assert matrices == ["model.embed_tokens.weight"]


def test_an_unknown_attention_keeps_its_forward() -> None:
    class OtherAttention(type(tiny_target().model.layers[0].self_attn)):  # type: ignore[misc]
        pass

    reference = plain_greedy(tiny_target(), PROMPT, 8)
    model = tiny_target()
    for layer in model.model.layers:
        layer.self_attn.__class__ = OtherAttention
    fused.install(model, linear.TORCH_FUSED)
    attention = model.model.layers[0].self_attn
    assert type(attention) is OtherAttention
    assert isinstance(attention.q_proj, linear.TorchLinear)
    assert drafted_ids(model, reference) == reference


def test_torch_swaps_nothing() -> None:
    model = tiny_target()
    before = [type(module) for module in model.modules()]
    fused.install(model, linear.TORCH)
    assert [type(module) for module in model.modules()] == before
