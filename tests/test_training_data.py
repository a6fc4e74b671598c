"""Anchors gathered from shards: features before the anchor, labels after it, laws of the same places."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from deploy.questions import Asking
from draft_service.training.data import TrainingData
from draft_service.training.forward import target_log_law
from draft_service.training.low_rank import fit_low_rank, principal_rows
from draft_service.training.rows import is_held_out
from draft_service.training.target_weights import load_target_weights
from draft_service.training.vocabulary import choose_vocabulary, columns_of
from protos.errors import ContractMismatch, InvalidRequest
from tests.training_fakes import answered, learnable_target, prompts, sequences_of

K = 4


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learnable_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def folder(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    asking = Asking((0.0, 1.0), max_tokens=20)
    return answered(target, tmp_path_factory.mktemp("data"), prompts(12, seed=1), asking)


def test_slot_j_is_the_token_at_anchor_plus_j(folder: Path) -> None:
    """Pitfall E3, against the texts themselves."""
    data = TrainingData([folder], held_out_fraction=0.0)
    batch = data.gather(data.anchors, K)
    row = 0
    for sequence in sequences_of(folder):
        ids, first = sequence.token_ids.tolist(), sequence.first_position
        for anchor in range(sequence.prompt_length, len(ids) - 1):
            assert int(batch.tokens[row, 0]) == ids[anchor]
            assert torch.equal(batch.features[row], sequence.features[anchor - 1 - first])
            for j in range(1, K + 1):
                valid = anchor + j < len(ids)
                assert bool(batch.valid[row, j - 1]) == valid
                if valid:
                    assert int(batch.tokens[row, j]) == ids[anchor + j]
                    decided_by = anchor + j - 1 - first
                    assert torch.equal(batch.hidden[row, j - 1], sequence.features[decided_by, -1])
                    assert int(batch.greedy[row, j - 1]) == int(sequence.greedy_tokens[decided_by])
            row += 1
    assert row == len(data.anchors)


def test_laws_recomputed_from_stored_states_are_the_targets(target: Path, folder: Path) -> None:
    data = TrainingData([folder], held_out_fraction=0.0)
    weights = load_target_weights(target, data.manifests[0].target)
    batch = data.gather(data.anchors, K)
    log_p = target_log_law(weights.lm_head, batch)
    assert torch.allclose(log_p.exp().sum(dim=-1), torch.ones(len(data.anchors), K), atol=1e-4)
    assert torch.equal(log_p.argmax(dim=-1)[batch.valid], batch.greedy[batch.valid])


def test_several_folders_are_one_table(target: Path, folder: Path, tmp_path: Path) -> None:
    other = answered(target, tmp_path / "other", prompts(3, seed=2), Asking((0.0,), max_tokens=20))
    first, second = TrainingData([folder], (), 0.0), TrainingData([other], (), 0.0)
    both = TrainingData([folder, other], (), 0.0)
    assert len(both) == len(first) + len(second)
    rows = torch.tensor([3, len(first) + 2, 0, len(first)])
    expected = torch.stack([first.read(rows[:1])[0], second.read(rows[1:2] - len(first))[0]])
    assert torch.equal(both.read(rows)[:2], expected)


def test_layers_can_be_chosen_and_must_have_been_captured(folder: Path) -> None:
    data = TrainingData([folder], (0, 2), 0.0)
    assert torch.equal(data.gather(data.anchors[:5], 1).features, data.read(data.anchors[:5])[:, [0, 2]])
    with pytest.raises(InvalidRequest, match="layer 7"):
        TrainingData([folder], (0, 7))


def test_data_of_another_target_is_refused(folder: Path, tmp_path: Path) -> None:
    other = learnable_target(tmp_path / "target")
    config = (other / "config.json").read_text()
    (other / "config.json").write_text(
        config.replace('"max_position_embeddings": 512', '"max_position_embeddings": 256')
    )
    data = answered(other, tmp_path / "data", prompts(2, seed=3), Asking((0.0,), max_tokens=20))
    with pytest.raises(ContractMismatch, match="target"):
        TrainingData([folder, data])


def test_a_prompt_is_held_out_with_all_its_answers() -> None:
    chosen = [is_held_out(torch.tensor([i, i + 1]), 0.3) for i in range(400)]
    assert 0.2 < sum(chosen) / 400 < 0.4
    assert chosen == [is_held_out(torch.tensor([i, i + 1], dtype=torch.int32), 0.3) for i in range(400)]
    assert not any(is_held_out(torch.tensor([i]), 0.0) for i in range(50))


def test_no_held_out_prompt_is_trained_on(folder: Path) -> None:
    data = TrainingData([folder], (), 0.4)
    assert len(data.held_out_anchors)
    assert not set(data.anchors.tolist()) & set(data.held_out_anchors.tolist())


def test_the_vocabulary_keeps_the_most_frequent_ids_in_order() -> None:
    labels = torch.tensor([5, 5, 5, 2, 2, 9, 1])
    assert choose_vocabulary(labels, 12, 3).tolist() == [1, 2, 5]
    assert choose_vocabulary(labels, 12, 3, always=[11]).tolist() == [2, 5, 11]
    assert choose_vocabulary(labels, 12, 6).tolist() == [0, 1, 2, 3, 5, 9]
    columns = columns_of(torch.tensor([2, 5, 11]), 12)
    assert columns.tolist() == [-1, -1, 0, -1, -1, 1, -1, -1, -1, -1, -1, 2]


def test_the_low_rank_start_is_the_best_of_its_rank_on_the_data() -> None:
    generator = torch.Generator().manual_seed(0)
    head, mixing = torch.randn(40, 12, generator=generator), torch.randn(12, 12, generator=generator)
    states = torch.randn(500, 12, generator=generator) @ mixing
    weights = torch.rand(40, generator=generator)
    weights /= weights.sum()

    def error(output: torch.Tensor, reduce: torch.Tensor) -> float:
        wanted = states @ (head - (weights[:, None] * head).sum(dim=0)).T
        return float((weights * (states @ reduce.T @ output.T - wanted) ** 2).sum(dim=-1).mean())

    fitted = fit_low_rank(head, states, weights, rank=5)
    u, s, v = torch.linalg.svd(head)
    plain = error(u[:, :5] * s[:5], v[:5])
    ours = error(fitted.output, fitted.reduce)
    assert ours < plain
    for _ in range(20):  # no small step improves it
        step = 0.02 * torch.randn(fitted.reduce.shape, generator=generator)
        assert error(fitted.output, fitted.reduce + step) > ours
    assert error(*_pair(fit_low_rank(head, states, weights, rank=12))) < 1e-3 * ours
    reduced = states @ fitted.reduce.T
    assert torch.allclose(reduced.T @ reduced / len(states), torch.eye(5), atol=1e-2)


def _pair(fitted: object) -> tuple[torch.Tensor, torch.Tensor]:
    return fitted.output, fitted.reduce  # type: ignore[attr-defined]


def test_more_rank_than_width_leaves_zeros() -> None:
    rows = principal_rows(torch.randn(9, 4, generator=torch.Generator().manual_seed(0)), torch.ones(9) / 9, 6)
    assert rows.shape == (9, 6)
    assert not rows[:, 4:].any()
