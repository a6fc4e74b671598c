"""A run in a folder: it learns, survives kills bit for bit, and leaves a drafter that loads."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from deploy.questions import Asking
from draft_service.checkpoint import read_draft_config
from draft_service.loader import load_drafter
from draft_service.proposal import DraftItem, DraftMode
from draft_service.training.loop import DRAFTER, METRICS, PROVENANCE
from draft_service.training.recipe import Recipe, read_recipe
from draft_service.training.run import train
from draft_service.training.scores import score
from draft_service.training.state import STATE_FILE
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


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learnable_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def data(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    asking = Asking((0.0, 1.0), max_tokens=32)
    return answered(target, tmp_path_factory.mktemp("data"), prompts(60, seed=1), asking)


def tau(drafter: Path, target: Path, texts: Path) -> dict[float, float]:
    """Walked tau of each temperature."""
    walks = list(walk_all(load_drafter(drafter, target), sequences_of(texts), WalkOptions(4, 32)))
    found = {}
    for temperature in {walk.sequence.temperature for walk in walks}:
        chosen = [walk for walk in walks if walk.sequence.temperature == temperature]
        value = score("", temperature, chosen, 4).tau
        assert value is not None
        found[temperature] = value
    return found


def test_training_at_least_doubles_tau_on_prompts_it_has_not_seen(
    target: Path, data: Path, tmp_path: Path
) -> None:
    texts = answered(target, tmp_path / "held-out", prompts(20, seed=2), Asking((0.0,), max_tokens=32))
    started = small_recipe(steps=1, learning_rate=1e-9, head_learning_rate=1e-9, block_init="random")
    train(started, run_options(data, target, tmp_path / "untrained"), Seen())
    trained = small_recipe(steps=250, batch_anchors=128, group_anchors=64)
    train(trained, run_options(data, target, tmp_path / "trained", save_every=250), Seen())
    before = tau(tmp_path / "untrained" / DRAFTER, target, texts)[0.0]
    after = tau(tmp_path / "trained" / DRAFTER, target, texts)[0.0]
    assert after >= 2 * before, (before, after)


def test_killed_at_five_random_moments_the_weights_are_those_of_an_unbroken_run(
    target: Path, data: Path, tmp_path: Path
) -> None:
    recipe = small_recipe(steps=30)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(recipe, run_options(data, target, whole), Seen())
    chance = random.Random(5)
    reached = 0
    for _ in range(5):
        moment = chance.randint(reached, 29)
        with pytest.raises(Killed):
            train(recipe, run_options(data, target, broken), Seen(die_at=moment))
        reached = moment // 7 * 7
    assert train(recipe, run_options(data, target, broken), Seen()) == 30
    ours, theirs = load_file(broken / STATE_FILE), load_file(whole / STATE_FILE)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert (broken / DRAFTER / "model.safetensors").read_bytes() == (
        whole / DRAFTER / "model.safetensors"
    ).read_bytes()
    assert metrics(broken) == metrics(whole)


def metrics(folder: Path) -> list[dict[str, object]]:
    """The lines of a run's metrics without what the machine's speed decides."""
    lines = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    return [
        {k: v for k, v in line.items() if k not in ("anchors_per_second", "loss", "training")}
        for line in lines
    ]


def test_a_run_is_a_function_of_recipe_and_data(target: Path, data: Path, tmp_path: Path) -> None:
    losses = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        seen = Seen()
        train(small_recipe(steps=5, seed=seed), run_options(data, target, tmp_path / name), seen)
        losses.append([report.loss for report in seen.steps])
    assert losses[0] == losses[1] != losses[2]


def test_a_folder_keeps_to_its_recipe(target: Path, data: Path, tmp_path: Path) -> None:
    train(small_recipe(steps=2), run_options(data, target, tmp_path), Seen())
    with pytest.raises(ContractMismatch, match="another recipe"):
        train(small_recipe(steps=3), run_options(data, target, tmp_path), Seen())


def test_the_drafter_says_what_it_was_made_for(target: Path, data: Path, tmp_path: Path) -> None:
    recipe = small_recipe(steps=2, draft_vocab_size=40, num_layers=2, block_init="spread_layers")
    train(recipe, run_options(data, target, tmp_path), Seen())
    config = read_draft_config(tmp_path / DRAFTER)
    assert (config.draft_vocab_size, config.num_layers, config.rank) == (40, 2, 16)
    assert config.block_size == 5
    assert config.variable_block
    assert config.target_layer_ids == (0, 1, 2)
    assert config.target_embedding_hash
    provenance = json.loads((tmp_path / PROVENANCE).read_text())
    assert provenance["recipe"] == recipe.model_dump(mode="json")
    assert provenance["num_anchors"] > 0
    assert load_drafter(tmp_path / DRAFTER, target).description.variable_block


def test_a_drafter_stored_in_half_the_bytes_loads(target: Path, data: Path, tmp_path: Path) -> None:
    for store in ("float32", "float16"):
        options = run_options(data, target, tmp_path / store, store_dtype=store)
        train(small_recipe(steps=3), options, Seen())
    whole, half = (
        load_file(tmp_path / store / DRAFTER / "model.safetensors") for store in ("float32", "float16")
    )
    for name, value in half.items():
        assert value.dtype == torch.float16
        assert torch.equal(value, whole[name].to(torch.float16))
    load_drafter(tmp_path / "float16" / DRAFTER, target).self_test()
    with pytest.raises(InvalidRequest, match="int4"):
        train(small_recipe(), run_options(data, target, tmp_path / "x", store_dtype="int4"), Seen())


def test_training_goes_on_from_given_weights(target: Path, data: Path, tmp_path: Path) -> None:
    first, second, seen = tmp_path / "first", tmp_path / "second", Seen()
    train(small_recipe(steps=60), run_options(data, target, first, save_every=60), Seen())
    options = run_options(data, target, second, init_from=first / DRAFTER, save_every=5)
    train(small_recipe(steps=5, kl_fraction=0.0), options, seen)
    cold = Seen()
    train(small_recipe(steps=5, kl_fraction=0.0), run_options(data, target, tmp_path / "cold"), cold)
    assert seen.steps[0].loss < cold.steps[0].loss
    other = run_options(data, target, tmp_path / "other", init_from=first / DRAFTER)
    with pytest.raises(ContractMismatch, match="rank"):
        train(small_recipe(rank=8), other, Seen())


def test_slot_k_is_labelled_and_served_as_anchor_plus_k(target: Path, tmp_path: Path) -> None:
    """Pitfall E3: overfit one sentence; a shift by one in either place gives accept length about 1."""
    text = answered(target, tmp_path / "one", prompts(1, seed=9), Asking((1.0,), max_tokens=24))
    recipe = small_recipe(
        steps=300,
        greedy_weight=1.0,
        law_weight=0.0,
        held_out_fraction=0.0,
        average_decay=0.0,
        variable_block=False,
    )
    seen = Seen()
    train(recipe, run_options(text, target, tmp_path / "run", save_every=400), seen)
    (sequence,) = sequences_of(text)
    drafter = load_drafter(tmp_path / "run" / DRAFTER, target)
    ids = sequence.token_ids.tolist()
    anchors = range(sequence.prompt_length, len(ids) - 4)
    items = [
        DraftItem("", (ids[a],), sequence.features[a - 1 - sequence.first_position], a, 4, DraftMode.GREEDY)
        for a in anchors
    ]
    greedy = sequence.greedy_tokens.tolist()
    served = [
        result.tokens[0] == greedy[a - sequence.first_position]
        for a, result in zip(anchors, drafter.propose(items), strict=True)
    ]
    trained = seen.saves[-1].training[0]
    assert trained is not None
    assert trained > 0.9
    assert abs(sum(served) / len(served) - trained) < 0.1


def test_recipes_name_what_is_wrong(tmp_path: Path) -> None:
    assert read_recipe(None, ["rank=64", "block_init=random"]).rank == 64
    file = tmp_path / "recipe.json"
    file.write_text(json.dumps({"steps": 7}))
    assert read_recipe(file) == Recipe(steps=7)
    for changes, field in (["ranks=1"], "ranks"), (["rank=-1"], "rank"), (["rank"], "--set"):
        with pytest.raises(InvalidRequest) as caught:
            read_recipe(None, changes)
        assert caught.value.field == field
    with pytest.raises(InvalidRequest, match="multiple"):
        read_recipe(None, ["batch_anchors=10", "group_anchors=4"])
