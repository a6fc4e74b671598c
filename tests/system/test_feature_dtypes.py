"""Features as int8, bf16 and f32 on the wire: the text is the same, the bytes are not, tau hardly moves."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.fakes import GOLDEN
from tests.system.stack import ask, golden_target, request, stack

DRAFT = GOLDEN / "draft_trained_g1"
COUNT = 40
LAYERS, WIDTH = 4, 64
# The design's figure is below 1 % on trained drafters of real size; this one has D = 64 and 200 rounds.
MOST_TAU_LOSS = 0.05


async def run(dtype: str | None) -> tuple[list[list[int]], float, float]:
    """Texts, tau and feature bytes a round over the golden prompts at v = 8."""
    golden = json.loads((GOLDEN / "draft_trained_g1.json").read_text())
    built = replace(golden_target(DRAFT), feature_dtype=dtype)
    texts, lengths, num_bytes = [], [], 0
    async with stack(built, DRAFT) as system:
        for prompt in golden["prompts"]:
            reply = await ask(system.coordinator.address, request(prompt["prompt_ids"], COUNT))
            texts.append(reply.token_ids)
            lengths += reply.finished.ledger.accept_lengths
            num_bytes += reply.finished.ledger.feature_bytes
    return texts, sum(lengths) / len(lengths), num_bytes / len(lengths)


async def test_int8_features_halve_the_bytes_and_keep_tau() -> None:
    texts, tau, _ = await run(None)
    half_texts, half_tau, half_bytes = await run("bf16")
    small_texts, small_tau, small_bytes = await run("int8")
    assert texts == half_texts == small_texts
    scales = LAYERS * 4
    assert small_bytes / half_bytes < (LAYERS * WIDTH + 2 * scales) / (2 * LAYERS * WIDTH)
    print(f"tau: f32 {tau:.3f}, bf16 {half_tau:.3f}, int8 {small_tau:.3f}")
    assert abs(half_tau - tau) <= MOST_TAU_LOSS * tau
    assert abs(small_tau - tau) <= MOST_TAU_LOSS * tau
