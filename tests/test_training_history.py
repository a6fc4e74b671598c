"""Drafters that keep a history, to compare with: what they see, how they learn, how they are walked."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from deploy.questions import Asking
from draft_service.training.data import AnchorBatch, TrainingData
from draft_service.training.history_net import Cache, HistoryNet
from draft_service.training.history_objective import HistoryObjective, block_states
from draft_service.training.history_walk import HistoryWalker
from draft_service.training.loop import DRAFTER, Trained
from draft_service.training.preparation import prepare
from draft_service.training.run import train_on
from draft_service.training.schedule import AnchorOrder
from draft_service.training.walk import Walk, WalkOptions
from tests.training_fakes import (
    Seen,
    answered,
    learnable_target,
    prompts,
    run_options,
    sequences_of,
    small_recipe,
)

K = 4
# float32 sums in another order.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learnable_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def folder(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    asking = Asking((0.0,), max_tokens=24)
    return answered(target, tmp_path_factory.mktemp("data"), prompts(40, seed=1), asking)


def net_of(kind: str, target: Path, folder: Path) -> tuple[HistoryNet, HistoryObjective]:
    data = TrainingData([folder], (), 0.2)
    recipe = small_recipe(net=kind, num_layers=2, draft_vocab_size=50)
    prepared = prepare(recipe, data, target, None, "cpu")
    net = prepared.model
    assert isinstance(net, HistoryNet)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for value in net.parameters():
            value += 0.05 * torch.randn(value.shape, generator=generator)
    return net.eval(), HistoryObjective(prepared.frozen, data, recipe)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["dflash", "dspark"])
def test_an_anchor_sees_every_row_up_to_its_pivot_and_none_after(
    kind: str, target: Path, folder: Path
) -> None:
    """A group of anchors of several texts against each anchor alone with its rows cut off."""
    net, objective = net_of(kind, target, folder)
    data, embedding = objective.data, objective.frozen.embedding
    pivots = data.anchors[torch.tensor([0, 3, 22, 23, 24, 47, 50, 1])]
    batch = data.gather(pivots, K)
    together = block_states(net, embedding, batch, data.history(pivots, 1000))
    for row, pivot in enumerate(pivots.tolist()):
        first = pivot - int(data.rows.rows_before[pivot])
        rows = torch.arange(first, pivot + 1)
        caches = net.caches(data.read(rows)[None], data.rows.positions[rows][None])
        anchor = data.rows.positions[pivot : pivot + 1] + 1
        ids = torch.cat([batch.tokens[row, :1], torch.full((K,), net.config.mask_token_id)])
        alone = net.states(embedding[ids][None], anchor, caches, torch.ones(1, len(rows), dtype=torch.bool))
        assert torch.allclose(together[row], alone[0], atol=TOLERANCE), row


@torch.no_grad()
def test_a_cache_that_grows_row_by_row_is_the_cache_of_all_rows(target: Path, folder: Path) -> None:
    net, objective = net_of("dflash", target, folder)
    features, positions = objective.data.read(torch.arange(6))[None], torch.arange(6)[None]
    whole = net.caches(features, positions)
    rows = [net.caches(features[:, [i]], positions[:, [i]]) for i in range(6)]
    for layer, one in enumerate(whole):
        keys = torch.cat([row[layer].keys for row in rows], dim=2)
        values = torch.cat([row[layer].values for row in rows], dim=2)
        assert torch.allclose(one.keys, keys, atol=TOLERANCE)
        assert torch.allclose(one.values, values, atol=TOLERANCE)
        assert one.num_bytes == 2 * 6 * net.config.num_kv_heads * net.config.head_dim * 4


@torch.no_grad()
def test_history_can_be_cut_to_the_latest_rows(target: Path, folder: Path) -> None:
    _, objective = net_of("dflash", target, folder)
    pivots = objective.data.anchors[torch.tensor([9, 11])]
    history = objective.data.history(pivots, 4)
    assert history.features.shape[:2] == (1, 4)
    assert history.visible.tolist() == [[True, True, False, False], [True] * 4]
    assert history.positions[0].tolist() == [int(history.anchors[1]) - 4 + i for i in range(4)]


@torch.no_grad()
@pytest.mark.parametrize("kind", ["dflash", "dspark"])
def test_walked_proposals_are_the_most_likely_tokens_of_the_trained_law(
    kind: str, target: Path, folder: Path
) -> None:
    """Training and walking see the same: the law of the objective, with the own proposals before it."""
    net, objective = net_of(kind, target, folder)
    data = objective.data
    token_ids = torch.nonzero(objective.frozen.columns >= 0)[:, 0]
    walker = HistoryWalker(net, objective.frozen, token_ids)
    sequences = sequences_of(folder)[:7]
    walks = {id(walk.sequence): walk for walk in walker.walk_all(sequences, WalkOptions(K), batch=4)}
    first = 0
    for sequence in sequences:
        walk = walks[id(sequence)]
        assert walk.position >= len(sequence.token_ids) - 2  # a last token is not drafted
        for one in walk.rounds:
            pivot = torch.tensor([first + one.position - 1 - sequence.first_position])
            batch = data.gather(pivot, one.asked)
            own = torch.cat([batch.tokens[:, :1], torch.tensor([one.proposals])], dim=1)
            history = data.history(pivot, 1000)
            given = AnchorBatch(**{**batch.__dict__, "tokens": own})
            states = block_states(net, objective.frozen.embedding, given, history)
            logits = net.logits(states, own[:, :-1], objective.frozen.lm_head)
            assert token_ids[logits.argmax(dim=-1)].tolist() == [list(one.proposals)]
        first += len(sequence.features)


def walked(found: Trained, folder: Path) -> float:
    net = found.model
    assert isinstance(net, HistoryNet)
    prepared = found.prepared
    ids = torch.arange(len(prepared.frozen.embedding)) if prepared.token_ids is None else prepared.token_ids
    walker = HistoryWalker(net, prepared.frozen, ids)
    walks: list[Walk] = list(walker.walk_all(sequences_of(folder), WalkOptions(K)))
    return sum(walk.num_tokens for walk in walks) / sum(len(walk.rounds) for walk in walks)


@pytest.mark.parametrize("kind", ["dflash", "dspark"])
def test_both_learn_and_are_not_served(kind: str, target: Path, folder: Path, tmp_path: Path) -> None:
    texts = answered(target, tmp_path / "held-out", prompts(8, seed=2), Asking((0.0,), max_tokens=24))
    data = TrainingData([folder], (), 0.2)
    options = run_options(folder, target, tmp_path / "run", save_every=60)
    recipe = small_recipe(steps=80, net=kind, batch_anchors=64, group_anchors=64, anchors_per_text=8)
    short = recipe.model_copy(update={"steps": 1, "learning_rate": 1e-9, "head_learning_rate": 1e-9})
    before = walked(train_on(data, short, run_options(folder, target, tmp_path / "untrained"), Seen()), texts)
    seen = Seen()
    found = train_on(data, recipe, options, seen)
    after = walked(found, texts)
    assert found.is_done
    assert after >= 1.5 * before, (before, after)
    assert not (tmp_path / "run" / DRAFTER).exists()
    again = train_on(data, recipe, options, Seen())
    assert again.new_steps == 0
    assert walked(again, texts) == after


def test_the_markov_head_starts_as_nothing_and_the_confidence_learns_the_overlap(
    target: Path, folder: Path
) -> None:
    data = TrainingData([folder], (), 0.2)
    prepared = prepare(small_recipe(net="dspark"), data, target, None, "cpu")
    net = prepared.model
    assert isinstance(net, HistoryNet)
    assert net.markov is not None
    assert not net.markov(torch.arange(9)).any()
    objective = HistoryObjective(prepared.frozen, data, small_recipe(net="dspark"))
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(60):
        optimiser.zero_grad()
        objective.loss(objective.group(net, data.anchors[:64], K, 0), 0).backward()
        optimiser.step()
    group = objective.group(net, data.anchors[:64], K, 0)
    assert group.confidence is not None
    overlap = torch.minimum(group.found.log_q, group.found.log_p).exp().sum(dim=-1)
    error = (group.confidence.sigmoid() - overlap)[group.valid].abs().mean()
    assert float(error.detach()) < 0.1


def test_anchors_of_a_text_can_follow_each_other() -> None:
    texts = torch.arange(6).repeat_interleave(torch.tensor([5, 1, 8, 3, 9, 4]))
    order = AnchorOrder(len(texts), 3, texts, per_text=4)
    first, second = order.take(0, len(texts)), order.take(len(texts), len(texts))
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(len(texts)))
    assert first.tolist() != second.tolist()
    _, runs = torch.unique_consecutive(texts[first], return_counts=True)
    assert len(runs) <= sum((n + 3) // 4 for n in (5, 1, 8, 3, 9, 4))
    assert torch.equal(AnchorOrder(len(texts), 3, texts, per_text=4).take(7, 9), first[7:16])
    assert torch.equal(AnchorOrder(30, 3, texts[:30], 1).take(0, 30), AnchorOrder(30, 3).take(0, 30))


def test_a_cache_counts_its_bytes() -> None:
    assert Cache(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4)).num_bytes == 2 * 24 * 4
