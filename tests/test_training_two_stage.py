"""Two-stage distillation: a teacher with a window of history, and the student that is served."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from deploy.questions import Asking
from draft_service.backbone import rotary, rotate
from draft_service.checkpoint import read_draft_config
from draft_service.loader import load_drafter
from draft_service.training.data import TrainingData
from draft_service.training.loop import DRAFTER, METRICS, PROVENANCE, TEACHER_CHECKPOINT
from draft_service.training.objective import StudentObjective
from draft_service.training.preparation import Prepared, as_teacher, prepare
from draft_service.training.recipe import Recipe, read_recipe
from draft_service.training.run import TEACHER, train
from draft_service.training.scores import score
from draft_service.training.state import STATE_FILE
from draft_service.training.teacher import TeacherModel
from draft_service.training.two_stage import is_head_frozen, student_recipe, target_share, teacher_recipe
from draft_service.training.walk import WalkOptions, walk_all
from protos.errors import ContractMismatch, InvalidRequest
from tests.training_fakes import (
    Killed,
    Seen,
    answered,
    learnable_target,
    prompts,
    run_options,
    sequences_of,
    small_recipe,
)

WINDOW = 5
# Sums of some ten float32 terms in another order.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learnable_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def data(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    asking = Asking((0.0, 1.0), max_tokens=32)
    return answered(target, tmp_path_factory.mktemp("data"), prompts(60, seed=1), asking)


def two_stage(**changes: object) -> Recipe:
    return small_recipe(**{"path": "two_stage", "window": WINDOW, **changes})


def teacher_of(target: Path, data: Path) -> tuple[Prepared, TeacherModel]:
    opened = TrainingData([data], (), 0.2)
    recipe = two_stage(num_layers=2)
    prepared = prepare(recipe, opened, target, None, "cpu")
    teacher = as_teacher(prepared, recipe).model
    assert isinstance(teacher, TeacherModel)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for value in teacher.parameters():
            value += 0.05 * torch.randn(value.shape, generator=generator)
    return prepared, teacher.eval()


def slow_states(
    teacher: TeacherModel, row: int, anchor: int, queries: torch.Tensor, data: TrainingData
) -> torch.Tensor:
    """u_1..u_K [K, D] of one anchor: every key looked up by its position, one query and head at a time."""
    config = teacher.config
    features = data.read(torch.arange(len(data)))
    slots = []  # (position, what keys and values come from)
    for token in range(anchor - WINDOW, anchor - 1):
        back = anchor - 1 - token
        if data.rows.rows_before[row] >= back:
            three = features[row - back][[0, features.shape[1] // 2, -1]]
            slots.append((token, teacher.history_norm(teacher.history_proj(three.flatten()))))
    slots += [(anchor - 1, slot) for slot in teacher.fuse(features[row : row + 1])[0]]
    x = queries
    for block in teacher.layers:
        attention, normed = block.self_attn, block.input_layernorm(x)
        everything = slots + [(anchor + j, normed[j]) for j in range(len(x))]
        per_kv = config.num_heads // config.num_kv_heads
        mixed = torch.zeros(len(x), config.num_heads, config.head_dim)
        for j in range(len(x)):
            for head in range(config.num_heads):
                part = slice(head * config.head_dim, (head + 1) * config.head_dim)
                kv = head // per_kv
                kv_part = slice(kv * config.head_dim, (kv + 1) * config.head_dim)
                q = turned(attention.q_norm(attention.q_proj(normed[j])[part]), anchor + j, teacher)
                weights, values = [], []
                for position, source in everything:
                    k = turned(attention.k_norm(attention.k_proj(source)[kv_part]), position, teacher)
                    weights.append(float(q @ k) / math.sqrt(config.head_dim))
                    values.append(attention.v_proj(source)[kv_part])
                chances = torch.softmax(torch.tensor(weights), dim=0)
                mixed[j, head] = sum(c * v for c, v in zip(chances, values, strict=True))
        x = x + attention.o_proj(mixed.flatten(1))
        x = x + block.mlp(block.post_attention_layernorm(x))
    return teacher.norm(x[1:])


def turned(vector: torch.Tensor, position: int, teacher: TeacherModel) -> torch.Tensor:
    """RoPE of one vector [C]."""
    config = teacher.config
    cos, sin = rotary(torch.tensor([[position]]), config.head_dim, config.rope_theta)
    return rotate(vector[None, None, None], cos, sin)[0, 0, 0]


@torch.no_grad()
def test_the_window_is_the_tokens_before_the_pivot_at_their_own_positions(target: Path, data: Path) -> None:
    """Against a loop over positions: the first anchors of a text have part of a window, or none."""
    prepared, teacher = teacher_of(target, data)
    pivots = prepared.data.anchors[:9]
    batch = prepared.data.gather(pivots, 3)
    window = prepared.data.window(pivots, WINDOW)
    assert window.valid.sum(dim=1).tolist()[:7] == [0, 1, 2, 3, 4, 4, 4]
    masks = torch.full((len(pivots), 3), teacher.config.mask_token_id)
    queries = prepared.frozen.embedding[torch.cat([batch.tokens[:, :1], masks], dim=1)]
    fast = teacher.states(batch.features, queries, window)
    for i in (0, 1, 4, 8):
        anchor = int(prepared.data.rows.positions[pivots[i]]) + 1
        slow = slow_states(teacher, int(pivots[i]), anchor, queries[i], prepared.data)
        assert torch.allclose(fast[i], slow, atol=TOLERANCE), i


def test_the_shares_of_the_steps_and_of_the_losses() -> None:
    recipe = two_stage(steps=100, teacher_fraction=0.3, distil_fraction=0.4, transition_fraction=0.2)
    teacher, student = teacher_recipe(recipe), student_recipe(recipe)
    assert (teacher.steps, student.steps) == (30, 70)
    shares = [target_share(step, student) for step in range(70)]
    assert set(shares[:28]) == {0.0}
    assert set(shares[42:]) == {1.0}
    assert shares[28:42] == sorted(shares[28:42])
    assert shares[35] == pytest.approx(0.5)
    assert [is_head_frozen(step, student) for step in (0, 41, 42, 69)] == [True, True, False, False]
    sudden = student.model_copy(update={"transition_fraction": 0.0})
    assert [target_share(step, sudden) for step in (27, 28)] == [0.0, 1.0]
    for wrong in ({"distil_fraction": 0.9}, {"net": "dflash"}, {"head": "none"}, {"steps": 1}):
        with pytest.raises(InvalidRequest):
            read_recipe(None, ["path=two_stage", *(f"{name}={value}" for name, value in wrong.items())])


def test_stage_one_is_towards_the_teacher_under_its_frozen_head(target: Path, data: Path) -> None:
    """A student that says what the teacher says has no loss in stage 1, whatever the target says."""
    prepared, teacher = teacher_of(target, data)
    recipe = student_recipe(two_stage(steps=100, num_layers=2))
    objective = StudentObjective(prepared.frozen, prepared.data, recipe, teacher)
    student = prepared.model
    group = objective.group(student, prepared.data.anchors[:16], 4, step=0)
    assert group.log_teacher is not None
    same = type(group)(
        type(group.found)(group.log_teacher, group.found.log_p, group.found.greedy),
        group.valid,
        group.log_teacher,
    )
    assert float(objective.loss(same, 0).detach()) == pytest.approx(0.0, abs=1e-4)
    loss = objective.loss(group, 0)
    assert float(loss.detach()) > 0.1
    loss.backward()
    objective.restrain(student, 0)
    moved = {name.split(".")[0] for name, value in student.named_parameters() if value.grad is not None}
    assert "sequential_head" not in moved
    assert "layers" in moved
    assert all(value.grad is None for value in teacher.parameters())
    assert objective.group(student, prepared.data.anchors[:16], 4, recipe.steps - 1).log_teacher is None


def tau(drafter: Path, target: Path, texts: Path) -> float:
    walks = walk_all(load_drafter(drafter, target), sequences_of(texts), WalkOptions(4, 32))
    found = score("", 0.0, walks, 4).tau
    assert found is not None
    return found


def test_two_stages_at_least_double_tau_and_the_teacher_is_not_served(
    target: Path, data: Path, tmp_path: Path
) -> None:
    texts = answered(target, tmp_path / "held-out", prompts(20, seed=2), Asking((0.0,), max_tokens=32))
    started = small_recipe(steps=1, learning_rate=1e-9, head_learning_rate=1e-9, block_init="random")
    train(started, run_options(data, target, tmp_path / "untrained"), Seen())
    recipe = two_stage(steps=200, batch_anchors=64, group_anchors=64)
    out = tmp_path / "trained"
    assert train(recipe, run_options(data, target, out, save_every=200), Seen()) == 200
    before, after = tau(tmp_path / "untrained" / DRAFTER, target, texts), tau(out / DRAFTER, target, texts)
    assert after >= 2 * before, (before, after)
    document = json.loads((out / PROVENANCE).read_text())
    assert document["recipe"]["path"] == "two_stage"
    assert document["recipe"]["window"] == WINDOW
    taught = json.loads((out / TEACHER / PROVENANCE).read_text())
    assert taught == {**document, "role": "teacher", "digest": taught["digest"]}
    with pytest.raises(ContractMismatch, match=r"never served.*drafter/ folder") as caught:
        read_draft_config(out / TEACHER / TEACHER_CHECKPOINT)
    assert caught.value.field == "dlite_config.model_role"


def test_killed_in_any_stage_the_weights_are_those_of_an_unbroken_run(
    target: Path, data: Path, tmp_path: Path
) -> None:
    recipe = two_stage(steps=40, teacher_fraction=0.4)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(recipe, run_options(data, target, whole), Seen())
    chance = random.Random(4)
    # The teacher's run (16 steps), stage 1, the transition, stage 2: steps counted through.
    for first, last in ((0, 15), (16, 24), (26, 29), (31, 39)):
        moment = chance.randint(first, last)
        with pytest.raises(Killed):
            train(recipe, run_options(data, target, broken), Mortal(die_at=moment))
    assert train(recipe, run_options(data, target, broken), Seen()) == 40
    for folder in (Path(), Path(TEACHER)):
        ours, theirs = load_file(broken / folder / STATE_FILE), load_file(whole / folder / STATE_FILE)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
        assert len((broken / folder / METRICS).read_text().splitlines()) == len(
            (whole / folder / METRICS).read_text().splitlines()
        )
    assert (broken / DRAFTER / "model.safetensors").read_bytes() == (
        whole / DRAFTER / "model.safetensors"
    ).read_bytes()


class Mortal(Seen):
    """Dies at a step of both runs together."""

    def begin(self, step: int, steps: int) -> None:
        self.die_at -= step
        self.steps.clear()

    def stepped(self, report: object) -> None:
        self.die_at -= 1
        if self.die_at < 0:
            raise Killed
