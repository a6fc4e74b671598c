"""A drafter with fewer ids than its target: noise and proposals are in target ids (pitfall E2)."""

from __future__ import annotations

import torch

from draft_service.sampling import Rule, draw
from protos.noise import Domain, coupled_choice, row_state
from tests.fakes import KEY

V, KEPT = 40, torch.tensor([1, 4, 5, 9, 12, 17, 20, 21, 28, 33, 36, 39])
ROUNDS = 400


def test_with_equal_laws_every_mapped_proposal_is_accepted() -> None:
    """q is p on the kept ids, renormalised: whenever the target draws a kept id, it is the proposal."""
    generator = torch.Generator().manual_seed(0)
    mapped = 0
    for position in range(ROUNDS):
        logits = torch.randn(V, generator=generator) + 2.0 * torch.isin(torch.arange(V), KEPT)
        state = row_state(KEY, Domain.TOKEN, position)
        target = int(coupled_choice(torch.log_softmax(logits, -1)[None], [state], torch.arange(V))[0])
        proposal = int(draw(logits[KEPT][None], [Rule.coupled(KEY, position, 1.0)], KEPT).tokens[0])
        assert proposal in KEPT.tolist()
        if target in KEPT.tolist():
            mapped += 1
            assert proposal == target, position
    assert mapped > ROUNDS / 2


def test_greedy_proposals_are_target_ids_and_ties_go_to_the_lower_one() -> None:
    logits = torch.zeros(len(KEPT))
    logits[[3, 7]] = 2.0
    assert draw(logits[None], [Rule.greedy()], KEPT).tokens.tolist() == [9]
