"""What we hand to flash-attn's paged kernel, shown by a slow twin with the same arguments in torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from protos.errors import InvalidRequest
from target_service import flash_kv
from target_service.build import assemble
from target_service.config import TargetConfig
from target_service.engine import Engine
from target_service.loader import from_model
from target_service.model import TargetModel
from tests.fakes import GOLDEN, Driver, limits_for, params, plain_greedy, tiny_target

PROMPT = [(7 * i + i * i) % 61 for i in range(40)]
CPU = torch.device("cpu")


def slow_varlen(
    q: torch.Tensor,  # [N, A, C]
    k: torch.Tensor,  # [P, S, H, C]
    v: torch.Tensor,
    *,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float | None,
    causal: bool,
    block_table: torch.Tensor,
) -> torch.Tensor:
    """flash_attn_varlen_func: the triangle is aligned to the end of keys."""
    assert causal
    outputs = []
    for i in range(len(block_table)):
        first, last = int(cu_seqlens_q[i]), int(cu_seqlens_q[i + 1])
        length = int(cu_seqlens_k[i + 1] - cu_seqlens_k[i])
        assert last - first <= max_seqlen_q
        assert length <= max_seqlen_k
        keys, values = (cache[block_table[i].long()].flatten(0, 1)[:length] for cache in (k, v))
        mask = torch.ones(last - first, length, dtype=torch.bool).tril(length - (last - first))
        queries, keys, values = (x.transpose(0, 1)[None] for x in (q[first:last], keys, values))
        output = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, scale=softmax_scale, enable_gqa=True
        )
        outputs.append(output[0].transpose(0, 1))
    return torch.cat(outputs)


def test_paged_flash_is_plain_decoding_for_unequal_sequences() -> None:
    stock = tiny_target("qwen3")
    prompts = [PROMPT, PROMPT[5:17], PROMPT[:3]]
    references = [plain_greedy(stock, prompt, 12) for prompt in prompts]
    limits = limits_for()
    model = TargetModel(stock, (0, 1, 2), limits.num_pages, limits.page_size, slow_varlen)
    model.self_test()
    assert model.attention_kernel == flash_kv.KERNEL_NAME
    engine = Engine(model, limits)
    drivers = [Driver(engine, str(i)) for i in range(3)]
    for driver, prompt in zip(drivers, prompts, strict=True):
        driver.open(prompt, params(12))
    for _ in range(3):
        for driver, reference in zip(drivers, references, strict=True):
            right = reference[len(driver.generated)]
            driver.take(engine.apply(driver.verify_command([right, 60, 60])))
        while engine.has_work():
            events = engine.step()
            for driver in drivers:
                driver.take(events)
    for driver, reference in zip(drivers, references, strict=True):
        assert len(driver.generated) >= 7
        assert driver.generated == reference[: len(driver.generated)]


def test_a_copied_page_holds_the_same_rows() -> None:
    model = TargetModel(tiny_target(), (0, 2), 4, 16, slow_varlen)
    model.kv.keys[:, 1] = 3.0
    model.copy_page(1, 2)
    assert torch.equal(model.kv.keys[:, 2], model.kv.keys[:, 1])


def test_flash_is_refused_without_the_package_or_off_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    config = TargetConfig.load(None, target="tiny", num_pages=8, num_tapped_layers=3, attention="flash")
    with pytest.raises(InvalidRequest, match="not installed"):
        assemble(from_model(tiny_target(), GOLDEN / "target_qwen3"), config)
    monkeypatch.setattr(flash_kv.importlib.util, "find_spec", lambda name: object())
    with pytest.raises(InvalidRequest, match="bfloat16 on a GPU only"):
        flash_kv.load_kernel(256, torch.float32, CPU)
    with pytest.raises(InvalidRequest, match="page_size: 256"):
        flash_kv.load_kernel(16, torch.bfloat16, torch.device("cuda"))


def test_an_unknown_attention_is_refused() -> None:
    config = TargetConfig.load(None, target="tiny", num_pages=8, num_tapped_layers=3, attention="fast")
    with pytest.raises(InvalidRequest, match="auto, sdpa, flash"):
        assemble(from_model(tiny_target(), GOLDEN / "target_qwen3"), config)
