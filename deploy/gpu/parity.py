"""Parity on a device: ids of our engine against the library's, features against its hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from deploy.bench.engine_runs import make_job
from deploy.gpu.models import Size, random_model
from target_service import fused
from target_service.flash_kv import Kernel
from target_service.model import TargetModel, self_test_logits
from target_service.packing import Extension, pack

FEATURE_TOLERANCE = 1e-3  # float32, hidden states of order 1 to 10
_NEAR_TIE = 1e-3
_PAGES = 64


def tapped_layers(size: Size) -> tuple[int, ...]:
    return (0, size.num_layers // 2, size.num_layers - 1)


@torch.inference_mode()
def check_float32(size: Size, device: torch.device, kernel: str) -> dict[str, Any]:
    """A prompt in two chunks, then 24 greedy tokens a row at a time and again as blocks of eight.

    Returns:
        `near_ties` and `mismatches` against the library's greedy ids, `feature_error`, `passed`.
    """
    torch.backends.cuda.matmul.allow_tf32 = False
    model = random_model(size, torch.float32, device)
    prompt = [token % size.vocab_size for token in make_job(1, 40, 1).prompt]
    states, expected = _stock(model, prompt, tapped_layers(size), 24)
    stock_logits = self_test_logits(model)
    fused.install(model, kernel)
    target = TargetModel(model, tapped_layers(size), _PAGES, 16)
    target.self_test(stock_logits)
    features, single = _decode(target, prompt, expected, 1)
    _, blocks = _decode(target, prompt, expected, 8)
    judged = [_judge(expected, logits) for logits in (single, blocks)]
    error = float((features.to(states.device) - states).abs().max())
    mismatches = sum(m for _, m in judged)
    return {
        "kernel": kernel,
        "near_ties": sum(n for n, _ in judged),
        "mismatches": mismatches,
        "feature_error": error,
        "passed": mismatches == 0 and error < FEATURE_TOLERANCE,
    }


def _stock(
    model: Any, prompt: Sequence[int], layers: Sequence[int], count: int
) -> tuple[torch.Tensor, list[int]]:
    """[m, D] of the prompt's last position, and greedy ids, by the library."""
    ids = torch.tensor([list(prompt)], device=model.device)
    output = model(ids, output_hidden_states=True, use_cache=False)
    states = torch.stack([output.hidden_states[i + 1][0, -1] for i in layers])
    generated = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        min_new_tokens=count,
        do_sample=False,
        pad_token_id=0,
    )
    return states, generated[0, len(prompt) :].tolist()


def _decode(
    target: TargetModel, prompt: Sequence[int], text: Sequence[int], rows: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Features [m, D] of the prompt's last row and logits [T, V] that decide `text`, fed in blocks."""
    size = target.kv.page_size
    pages = tuple(range(-(-(len(prompt) + len(text)) // size)))

    def forward(tokens: Sequence[int], start: int, num_decisions: int) -> Any:
        extension = Extension(tuple(tokens), start, pages, num_decisions)
        return target.forward(pack([extension], size, target.device))

    forward(prompt[:13], 0, 0)
    first = forward(prompt[13:], 13, 1)
    logits = [first.logits]
    for start in range(0, len(text) - 1, rows):
        block = text[start : min(start + rows, len(text) - 1)]
        logits.append(forward(block, len(prompt) + start, len(block)).logits)
    return first.features[0], torch.cat(logits)


def _judge(expected: Sequence[int], logits: torch.Tensor) -> tuple[int, int]:
    """Near-ties and mismatches of the argmax of each row against the expected ids."""
    ids = torch.tensor(expected, device=logits.device)
    best = logits.max(dim=-1).values
    gaps = (best - logits.gather(1, ids[:, None])[:, 0])[logits.argmax(dim=-1) != ids]
    near = int((gaps < _NEAR_TIE).sum())
    return near, len(gaps) - near


@torch.inference_mode()
def flash_difference(size: Size, model: PreTrainedModel, kernel: Kernel) -> dict[str, Any]:
    """bfloat16 logits of flash-attn's paged kernel against sdpa's on one text."""
    prompt = [token % size.vocab_size for token in make_job(2, 300, 1).prompt]
    text = prompt[:24]
    _, sdpa = _decode(TargetModel(model, (), _PAGES, 16), prompt, text, 8)
    _, flash = _decode(TargetModel(model, (), 4, 256, kernel), prompt, text, 8)
    difference = float((flash - sdpa).abs().max())
    return {"max_difference": difference, "passed": difference < 0.05 * float(sdpa.abs().max())}
