"""The drafter against recorded outputs of the released code, and its twins against one another."""

from __future__ import annotations

import json

import pytest
import torch

from draft_service.backbone import block_layout
from protos.feature_layers import build_target_layer_ids
from tests.golden_draft import (
    DRAFTS,
    GOLDEN,
    NUM_PROMPTS,
    close,
    drafter,
    first_rounds,
    group_size,
    tensors,
    traced_rounds,
)

FUNCTIONS = json.loads((GOLDEN / "functions.json").read_text())


@pytest.mark.parametrize("case", FUNCTIONS["build_target_layer_ids"], ids=lambda c: f"L{c['L']}m{c['m']}")
def test_tapped_layers(case: dict) -> None:
    assert build_target_layer_ids(case["L"], case["m"]) == tuple(case["ids"])


@pytest.mark.parametrize("case", FUNCTIONS["build_target_layer_ids_errors"], ids=str)
def test_impossible_tapped_layers(case: dict) -> None:
    with pytest.raises(ValueError, match="layers"):
        build_target_layer_ids(case["L"], case["m"])


POSITIONS = FUNCTIONS["build_block_position_ids"]


@pytest.mark.parametrize("case", POSITIONS["cases"], ids=str)
def test_positions_of_a_served_block(case: dict) -> None:
    expected = case["inference"]
    layout = block_layout([expected["token_group_length"]], [POSITIONS["block_size"] - 1], POSITIONS["m"])
    assert layout.context_positions[0].tolist() == expected["context_position_ids"]
    assert layout.query_positions[0].tolist() == expected["draft_position_ids"]
    assert layout.key_mask is None


@pytest.mark.parametrize("case", POSITIONS["cases"], ids=str)
def test_positions_of_a_padded_group(case: dict) -> None:
    """Beside an item with a whole group, a shorter one gets the recorded padded positions."""
    expected = case["direct"]
    keep = expected["token_keep_mask"]
    num_masks = POSITIONS["block_size"] - 1
    layout = block_layout([len(keep), sum(keep)], [num_masks, num_masks], POSITIONS["m"])
    assert layout.query_positions[1].tolist() == expected["draft_position_ids"]
    assert layout.context_positions[1].tolist() == expected["context_position_ids"]
    if not all(keep):
        assert layout.key_mask is not None
        assert layout.key_mask[1].tolist() == [True] * POSITIONS["m"] + keep + [True] * num_masks


@pytest.mark.parametrize("name", DRAFTS)
def test_context_slots(name: str) -> None:
    data = tensors(name)
    for i in range(NUM_PROMPTS):
        fused = drafter(name)._model.fuse(data[f"p{i}.pivot_features"][None])[0]
        close(fused, data[f"p{i}.fused_context"])


@pytest.mark.parametrize("name", DRAFTS)
def test_query_embeddings(name: str) -> None:
    data, config = tensors(name), drafter(name)._config
    for i, golden in enumerate(first_rounds(name)):
        ids = [*golden.item.recent_tokens, *[config.mask_token_id] * config.num_proposals]
        assert torch.equal(drafter(name)._embedding[ids], data[f"p{i}.query_embeds"])


@pytest.mark.parametrize("name", DRAFTS)
def test_rotary_positions(name: str) -> None:
    data = tensors(name)
    for i in range(NUM_PROMPTS):
        layout = block_layout([group_size(name)], [7], 4)
        positions = torch.cat([layout.context_positions, layout.query_positions], dim=1)[0]
        assert positions.tolist() == data[f"p{i}.rotary_position_ids"].tolist()


@pytest.mark.parametrize("rounds", [first_rounds, traced_rounds])
@pytest.mark.parametrize("name", DRAFTS)
def test_backbone_and_proposals(name: str, rounds) -> None:
    for golden in rounds(name):
        hidden, _ = drafter(name).encode([golden.item])
        close(hidden[0], golden.hidden)
        (result,) = drafter(name).propose([golden.item])
        assert result.tokens == golden.proposals


@pytest.mark.parametrize("name", DRAFTS)
def test_head_logits_teacher_forced_and_sequential(name: str) -> None:
    """The recorded logits from both forms of the head."""
    data, head = tensors(name), drafter(name)._model.sequential_head
    for i, golden in enumerate(first_rounds(name)):
        hidden, state = drafter(name).encode([golden.item])
        anchor = golden.item.recent_tokens[-1]
        previous = torch.tensor([[anchor, *golden.proposals[:-1]]])
        forced = head.block_logits(hidden, previous, state)[0]
        seen: list[torch.Tensor] = []

        def keep(step: int, logits: torch.Tensor, seen: list[torch.Tensor] = seen) -> torch.Tensor:
            seen.append(logits[0])
            return logits.argmax(dim=-1)

        head.propose(hidden, torch.tensor([anchor]), state, [1] * len(golden.proposals), keep)
        close(forced, data[f"p{i}.draft_logits"])
        close(torch.stack(seen), data[f"p{i}.draft_logits"])
        assert forced.argmax(dim=-1).tolist() == list(golden.proposals)
