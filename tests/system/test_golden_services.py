"""The released drafter's own runs, repeated through three services over gRPC.

Golden ids are plain greedy; golden accept lengths are the release's, per round. The release counts
the prefill's token in its first block and does not cut the last one, so we ask for more tokens and
its list must be a prefix of ours.
"""

from __future__ import annotations

import json

import pytest
import torch

from tests.fakes import GOLDEN
from tests.system.stack import ask, golden_target, request, stack

COUNT = 40
ASKED = 48


@pytest.mark.parametrize("name", ["draft_dlite_v1_g1", "draft_dlite_v1_g2", "draft_trained_g1"])
async def test_golden_runs(name: str) -> None:
    golden = json.loads((GOLDEN / f"{name}.json").read_text())
    async with stack(golden_target(GOLDEN / name), GOLDEN / name) as system:
        for prompt in golden["prompts"]:
            for v in (8, 5, 3):
                reply = await ask(system.coordinator.address, request(prompt["prompt_ids"], ASKED, v=v))
                expected = prompt["spec"][f"v{v}"]["accept_lengths"]
                lengths = list(reply.finished.ledger.accept_lengths)
                assert reply.token_ids[:COUNT] == prompt["hf_greedy_ids"][:COUNT]
                assert lengths[: len(expected)] == expected, f"prompt {prompt['index']} v={v}"
                assert max(lengths) <= v


async def test_mask_ids_are_not_dropped() -> None:
    # The release drops every id equal to the mask id from its row, the prompt's included.
    golden = json.loads((GOLDEN / "draft_dlite_v1_g1.json").read_text())
    extra = golden["extras"]["mask_id_in_prompt"]
    async with stack(golden_target(GOLDEN / "draft_dlite_v1_g1"), GOLDEN / "draft_dlite_v1_g1") as system:
        reply = await ask(system.coordinator.address, request(extra["prompt_ids"], 8))
    assert reply.finished.usage.prompt_tokens == len(extra["prompt_ids"])
    dropped = [token for token in [*extra["prompt_ids"], *reply.token_ids] if token != 255]
    assert dropped == extra["output_ids"]


async def test_a_stop_id_as_the_very_first_token_ends_at_once() -> None:
    # The release looks for a stop only after a step, so the first token costs it one.
    golden = json.loads((GOLDEN / "draft_dlite_v1_g1.json").read_text())
    prompt = golden["prompts"][0]
    async with stack(golden_target(GOLDEN / "draft_dlite_v1_g1"), GOLDEN / "draft_dlite_v1_g1") as system:
        message = request(prompt["prompt_ids"], 8, stop_token_ids=[prompt["greedy_anchor"]])
        reply = await ask(system.coordinator.address, message)
    assert reply.token_ids == [prompt["greedy_anchor"]]
    assert reply.finished.ledger.num_draft_rounds == 0


def test_golden_needs_no_excuse() -> None:
    """The margins that make float32 ids comparable at all."""
    for name in ("draft_dlite_v1_g1", "draft_dlite_v1_g2", "draft_trained_g1"):
        golden = json.loads((GOLDEN / f"{name}.json").read_text())
        assert golden["target_min_top2_margin"] > 1e-3
    assert torch.get_num_threads() == 1
