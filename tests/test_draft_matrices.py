"""What a drafter multiplies in: what fewer bits change, and who gets them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from draft_service import matrices
from draft_service.config import Matrices
from draft_service.loader import load_drafter
from protos import half
from protos.bfloat16 import Bfloat16Linear
from protos.errors import InvalidRequest
from tests.golden_draft import DRAFTS, GOLDEN, TARGET, drafter, first_rounds

# Of a backbone's states: weights of 11 bits, and weights and inputs of 8.
RELATIVE_ERRORS: dict[Matrices, float] = {"float16": 0.002, "bfloat16": 0.03}

needs_half = pytest.mark.skipif(not half.is_available(), reason="torch has no fbgemm on this machine")


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).detach().norm() / expected.detach().norm())


@pytest.mark.parametrize(
    ("has_half", "capabilities", "expected"),
    [
        (True, {"avx512_bf16": True}, "float16"),
        (False, {"avx512_bf16": True}, "bfloat16"),
        (False, {"amx_bf16": True}, "bfloat16"),
        (False, {"avx2": True}, "float32"),
    ],
)
def test_auto_is_what_the_processor_has(
    has_half: bool, capabilities: dict[str, bool], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(half, "is_available", lambda: has_half)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert matrices.chosen("auto") == expected
    assert matrices.chosen("auto", "cuda:0") == "float32"
    assert matrices.chosen("float32") == "float32"
    assert matrices.chosen("bfloat16", "cuda:0") == "bfloat16"
    for device in ("cuda:0",) if has_half else ("cpu", "cuda:0"):
        with pytest.raises(InvalidRequest, match="fbgemm"):
            matrices.chosen("float16", device)


@needs_half
def test_each_gets_its_layers() -> None:
    def layers(each: Matrices) -> list[type]:
        model = nn.ModuleDict({"inner": nn.Linear(4, 4), "output_proj": nn.Linear(4, 4)})
        matrices.use(model, each)
        return [type(layer) for layer in model.values()]

    assert layers("float32") == [nn.Linear, nn.Linear]
    assert layers("float16") == [half.HalfLinear, half.HalfLinear]
    assert layers("bfloat16") == [Bfloat16Linear, nn.Linear], "rounded to 8 bits, logits would tie"


@pytest.mark.parametrize("each", [pytest.param("float16", marks=needs_half), "bfloat16"])
@pytest.mark.parametrize("name", DRAFTS)
def test_a_drafter_thinks_nearly_the_same(name: str, each: Matrices) -> None:
    fast = load_drafter(GOLDEN / name, TARGET, matrices=each)
    fast.self_test()
    for golden in first_rounds(name):
        hidden, _ = fast.encode([golden.item])
        expected, _ = drafter(name).encode([golden.item])
        assert 0 < relative(hidden, expected) < RELATIVE_ERRORS[each]
        (result,) = fast.propose([golden.item])
        assert len(result.tokens) == len(golden.proposals)


@needs_half
def test_a_batch_in_float16_gives_what_each_item_alone_gives() -> None:
    fast = load_drafter(GOLDEN / DRAFTS[0], TARGET, matrices="float16")
    items = [golden.item for golden in first_rounds(DRAFTS[0])]
    assert [result.tokens for result in fast.propose(items)] == [
        fast.propose([item])[0].tokens for item in items
    ]
