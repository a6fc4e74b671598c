"""Batching, validation and laws of the drafter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from draft_service.checkpoint import DraftCheckpointConfig
from draft_service.drafter import Drafter
from draft_service.loader import describe
from draft_service.model import DraftModel
from draft_service.proposal import DraftItem, DraftMode, DraftResult
from draft_service.untrained import initialise
from protos.noise import Domain, hash32
from tests.golden_draft import DRAFTS, GOLDEN, close, drafter, first_rounds, traced_rounds

# Probabilities of the same item alone and in a batch: float32 summation order.
PROBABILITY_TOLERANCE = 1e-5


def same(left: DraftResult, right: DraftResult) -> None:
    assert left.refusal is None
    assert left.tokens == right.tokens
    assert left.probabilities == pytest.approx(right.probabilities, abs=PROBABILITY_TOLERANCE)


def mixed_items(name: str) -> list[DraftItem]:
    """Items of unlike k, group length, mode and temperature."""
    items = [golden.item for golden in traced_rounds(name)[::3]]
    out = []
    for i, item in enumerate(items):
        changed = replace(item, k=1 + i % 7, key=bytes([i] * 16), temperature=0.5 + 0.25 * (i % 4))
        if i % 2:
            changed = replace(changed, mode=DraftMode.COUPLED)
        if i % 3 == 2:
            changed = replace(changed, recent_tokens=changed.recent_tokens[-1:])
        out.append(changed)
    return out


@pytest.mark.parametrize("name", DRAFTS)
def test_a_batch_gives_what_each_item_alone_gives(name: str) -> None:
    items = mixed_items(name)
    assert len(items) > 8
    for item, batched in zip(items, drafter(name).propose(items), strict=True):
        same(batched, drafter(name).propose([item])[0])
        assert len(batched.tokens) == item.k


@pytest.mark.parametrize("name", DRAFTS)
def test_fewer_proposals_are_the_first_of_the_full_block(name: str) -> None:
    for golden in first_rounds(name):
        for k in range(1, 8):
            (result,) = drafter(name).propose([replace(golden.item, k=k)])
            assert result.tokens == golden.proposals[:k]


def test_a_short_group_is_one_token_at_the_start_of_text() -> None:
    """With G = 2 and one token the block is laid out as with G = 1 and the head is not primed."""
    name = "draft_dlite_v1_g2"
    item = replace(first_rounds(name)[0].item, recent_tokens=(7,), position=0)
    _, state = drafter(name).encode([item])
    assert not bool(state.any())
    same(drafter(name).propose([first_rounds(name)[1].item, item])[1], drafter(name).propose([item])[0])


def variable_config(**changes) -> DraftCheckpointConfig:
    return replace(drafter("draft_dlite_v1_g2")._config, variable_block=True, **changes)


def make(model: DraftModel, token_ids: torch.Tensor | None = None) -> Drafter:
    embedding = drafter("draft_dlite_v1_g2")._embedding
    ids = torch.arange(model.config.vocab_size) if token_ids is None else token_ids
    description = describe(model.config, GOLDEN / "draft_dlite_v1_g2", "")
    return Drafter(model.requires_grad_(False), embedding, ids, description)


def variable_drafter() -> Drafter:
    model = DraftModel(variable_config())
    model.load_state_dict(drafter("draft_dlite_v1_g2")._model.state_dict())
    return make(model.eval())


def test_a_variable_block_computes_k_rows_alike_alone_and_in_a_mixed_batch() -> None:
    variable, items = variable_drafter(), mixed_items("draft_dlite_v1_g2")
    for item, batched in zip(items, variable.propose(items), strict=True):
        same(batched, variable.propose([item])[0])
    hidden, _ = variable.encode(sorted(items, key=lambda item: -item.k))
    for row, item in enumerate(sorted(items, key=lambda item: -item.k)):
        alone, _ = variable.encode([item])
        assert alone.shape[1] == item.k
        close(hidden[row, : item.k], alone[0])


def test_a_variable_block_of_full_length_is_the_full_block() -> None:
    for golden in first_rounds("draft_dlite_v1_g2"):
        assert variable_drafter().propose([golden.item])[0].tokens == golden.proposals


def test_fewer_mask_rows_change_the_states() -> None:
    """Why checkpoints without the flag always compute the full block."""
    item = replace(first_rounds("draft_dlite_v1_g2")[0].item, k=2)
    short, _ = variable_drafter().encode([item])
    full, _ = drafter("draft_dlite_v1_g2").encode([item])
    assert float((short[0] - full[0, :2]).abs().max()) > 1e-2


GOOD = first_rounds("draft_dlite_v1_g2")[0].item
BAD = {
    "features": replace(GOOD, features=None),
    "features.shape": replace(GOOD, features=torch.zeros(3, 64)),
    "features.dtype": replace(GOOD, features=torch.zeros(4, 64, dtype=torch.float64)),
    "features.data": replace(GOOD, features=torch.full((4, 64), float("nan"))),
    "recent_tokens": replace(GOOD, recent_tokens=(1, 256)),
    "position": replace(GOOD, position=-1),
    "k": replace(GOOD, k=8),
    "max_law_entries": replace(GOOD, mode=DraftMode.REJECTION, key=bytes(16), temperature=1.0),
    "sampling_key": replace(GOOD, mode=DraftMode.COUPLED, key=b"short"),
    "temperature": replace(GOOD, mode=DraftMode.COUPLED, temperature=0.0),
}


@pytest.mark.parametrize("field", BAD)
def test_a_bad_item_is_refused_by_name_beside_a_good_one(field: str) -> None:
    results = drafter("draft_dlite_v1_g2").propose([GOOD, BAD[field], GOOD])
    assert results[1].refusal is not None
    assert results[1].refusal.field == field
    assert results[1].tokens == ()
    same(results[0], drafter("draft_dlite_v1_g2").propose([GOOD])[0])
    same(results[2], results[0])


@pytest.mark.parametrize(
    ("field", "item"),
    [
        ("k", replace(GOOD, k=0)),
        ("sampling_key", replace(GOOD, mode=DraftMode.REJECTION, key=b"short")),
        ("recent_tokens", replace(GOOD, recent_tokens=())),
        ("recent_tokens", replace(GOOD, recent_tokens=(1, 2, 3))),
        ("recent_tokens", replace(GOOD, position=0)),
        ("position", replace(GOOD, position=2**64 - 1)),
        ("features.data", replace(GOOD, features=torch.full((4, 64), float("inf")))),
        ("temperature", replace(GOOD, mode=DraftMode.COUPLED, temperature=float("nan"))),
    ],
)
def test_more_bad_items(field: str, item: DraftItem) -> None:
    (result,) = drafter("draft_dlite_v1_g2").propose([item])
    assert result.refusal is not None
    assert result.refusal.field == field


def test_match_proposes_the_greedy_tokens() -> None:
    greedy, match = drafter("draft_dlite_v1_g2").propose([GOOD, replace(GOOD, mode=DraftMode.MATCH)])
    assert match == replace(greedy, forward_us=match.forward_us, sample_us=match.sample_us)


def test_rejection_draws_each_token_from_the_law_it_sends() -> None:
    wanted = replace(GOOD, mode=DraftMode.REJECTION, key=bytes(16), temperature=0.9, max_law_entries=16)
    (result,) = drafter("draft_dlite_v1_g2").propose([wanted])
    assert len(result.laws) == len(result.tokens) == GOOD.k
    assert result.probabilities == (), "in this mode nothing may look at a proposal"
    for token, law in zip(result.tokens, result.laws, strict=True):
        assert token in law.token_ids
        assert len(set(law.token_ids)) == len(law.token_ids) == 16
        assert sum(law.probabilities) == pytest.approx(1.0, abs=1e-6)


def test_no_items() -> None:
    assert drafter("draft_dlite_v1_g1").propose([]) == []


@pytest.mark.parametrize("temperature", [1e-30, 1e-3, 1e30])
def test_extreme_temperatures(temperature: float) -> None:
    item = replace(GOOD, mode=DraftMode.COUPLED, temperature=temperature)
    (result,) = drafter("draft_dlite_v1_g2").propose([item])
    assert all(0 < p <= 1 for p in result.probabilities)
    if temperature == 1e-30:
        assert result.tokens == drafter("draft_dlite_v1_g2").propose([GOOD])[0].tokens


def slow_coupled_proposals(one: Drafter, item: DraftItem) -> list[int]:
    """The slow twin: Python integers for the hash, float64 for the race, one position at a time."""
    hidden, state = one.encode([item])
    head = one._model.sequential_head
    token = item.recent_tokens[-1]
    tokens = []
    for step in range(item.k):
        state = head.advance(state, torch.tensor([token]))
        law = torch.log_softmax(head.logits(state, hidden[:, step])[0].double() / item.temperature, dim=-1)
        ids = one._token_ids.tolist()
        h = [hash32(item.key, Domain.TOKEN, item.position + step + 1, t) for t in ids]
        u = (torch.tensor(h, dtype=torch.float64) + 0.5) * 2.0**-32
        token = ids[int((law - torch.log(-torch.log1p(-u))).argmax())]
        tokens.append(token)
    return tokens


@pytest.mark.parametrize("name", DRAFTS)
def test_coupled_proposals_follow_the_noise_of_target_ids_and_positions(name: str) -> None:
    for item in mixed_items(name):
        coupled = replace(item, mode=DraftMode.COUPLED)
        (result,) = drafter(name).propose([coupled])
        assert list(result.tokens) == slow_coupled_proposals(drafter(name), coupled)


def reduced_drafter() -> Drafter:
    """Half a vocabulary: logit i stands for target id 255 - 2 i."""
    config = variable_config(draft_vocab_size=128)
    ids = 255 - 2 * torch.arange(128)
    model = initialise(config, seed=3)
    state = drafter("draft_dlite_v1_g2")._model.state_dict()
    state["sequential_head.output_proj.weight"] = state["sequential_head.output_proj.weight"][ids]
    model.load_state_dict(state)
    return make(model, ids)


def test_a_reduced_vocabulary_draws_target_ids() -> None:
    reduced, items = reduced_drafter(), mixed_items("draft_dlite_v1_g2")
    for item, batched in zip(items, reduced.propose(items), strict=True):
        assert all(token % 2 for token in batched.tokens)
        if item.mode is DraftMode.COUPLED:
            assert list(batched.tokens) == slow_coupled_proposals(reduced, item)


def test_a_reduced_greedy_proposal_is_the_best_of_its_ids() -> None:
    item = replace(GOOD, k=1)
    full, reduced = variable_drafter(), reduced_drafter()
    hidden, state = full.encode([item])
    head = full._model.sequential_head
    state = head.advance(state, torch.tensor([item.recent_tokens[-1]]))
    logits = head.logits(state, hidden[:, 0])[0]
    odd = torch.arange(1, 256, 2)
    assert reduced.propose([item])[0].tokens == (int(odd[logits[odd].argmax()]),)
