"""SIGKILL at random moments of `dlite train`, then the same command again: the weights are the same."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from deploy.questions import Asking
from draft_service.training.loop import METRICS
from draft_service.training.run import train
from draft_service.training.state import STATE_FILE
from tests.training_fakes import Seen, answered, learnable_target, prompts, run_options, small_recipe

ROOT = Path(__file__).parent.parent
STEPS = 600
NUM_KILLS = 5


def wait_for_lines(file: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    """Until the run has saved so often, or has ended."""
    while process.poll() is None and (not file.exists() or file.read_bytes().count(b"\n") < count):
        time.sleep(0.01)


@pytest.mark.prove
@pytest.mark.timeout(900)
def test_sigkill_at_five_random_moments(tmp_path: Path) -> None:
    target = learnable_target(tmp_path / "target")
    data = answered(target, tmp_path / "data", prompts(40, seed=1), Asking((0.0, 1.0), max_tokens=24))
    recipe = small_recipe(steps=STEPS)
    train(recipe, run_options(data, target, tmp_path / "whole"), Seen())
    file = tmp_path / "recipe.json"
    file.write_text(recipe.model_dump_json())
    out = tmp_path / "broken"
    command = f"-m deploy.cli train --data {data} --target {target} --out {out} --recipe {file}"
    command += " --save-every 7 --evaluation-anchors 64"
    chance, saves, num_killed = random.Random(3), 0, 0
    while True:
        process = subprocess.Popen(
            [sys.executable, *command.split()],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stderr=subprocess.DEVNULL,
        )
        if num_killed == NUM_KILLS:
            assert process.wait() == 0
            break
        saves += chance.randint(1, 8)
        wait_for_lines(out / METRICS, saves, process)
        # Into the middle of a step, or of a save.
        time.sleep(chance.random() * 0.1)
        assert process.poll() is None, "the run ended before it was killed"
        process.kill()
        process.wait()
        num_killed += 1
    ours, theirs = load_file(out / STATE_FILE), load_file(tmp_path / "whole" / STATE_FILE)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
