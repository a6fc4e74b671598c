"""Two gloo processes under torchrun train the weights of one process, up to the order of sums."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from deploy.questions import Asking
from draft_service.training.loop import DRAFTER
from draft_service.training.run import train
from tests.training_fakes import Seen, answered, learnable_target, prompts, run_options, small_recipe

# float32 sums in another order, through a few AdamW steps.
TOLERANCE = 2e-4
ROOT = Path(__file__).parent.parent


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_two_processes_train_what_one_trains(tmp_path: Path) -> None:
    target = learnable_target(tmp_path / "target")
    data = answered(target, tmp_path / "data", prompts(20, seed=1), Asking((0.0,), max_tokens=20))
    recipe = small_recipe(steps=4, batch_anchors=32, group_anchors=16)
    train(recipe, run_options(data, target, tmp_path / "one"), Seen())
    file = tmp_path / "recipe.json"
    file.write_text(recipe.model_dump_json())
    torchrun = (
        f"-m torch.distributed.run --nproc-per-node 2 --master-addr 127.0.0.1 --master-port {free_port()}"
    )
    command = f"-m deploy.cli train --data {data} --target {target} --out {tmp_path / 'two'} --recipe {file}"
    subprocess.run(
        [sys.executable, *torchrun.split(), *command.split()],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        timeout=240,
    )
    one = load_file(tmp_path / "one" / DRAFTER / "model.safetensors")
    two = load_file(tmp_path / "two" / DRAFTER / "model.safetensors")
    assert one.keys() == two.keys()
    for name in one:
        assert torch.allclose(one[name], two[name], atol=TOLERANCE), name
