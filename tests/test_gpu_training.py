"""The script for a GPU machine, run on the CPU: parts in, a drafter in parts out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.gpu.parts import INDEX, join, main, split
from deploy.questions import Asking
from draft_service.loader import load_drafter
from protos.errors import ContractMismatch, InvalidRequest
from tests.training_fakes import answered, learnable_target, prompts, small_recipe

ROOT = Path(__file__).parent.parent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    (folder / "large.bin").write_bytes(bytes(range(256)) * 10)
    (folder / "deep" / "small.txt").write_text("small")
    (folder / "empty").write_text("")
    return folder


def test_what_is_split_is_joined(folder: Path, tmp_path: Path) -> None:
    split(folder, tmp_path / "parts", 1000)
    assert max(file.stat().st_size for file in (tmp_path / "parts").glob("*.part")) == 1000
    joined = join(tmp_path / "parts", tmp_path / "joined")
    assert len(joined) == 3
    for file in joined:
        assert file.read_bytes() == (folder / file.relative_to(tmp_path / "joined")).read_bytes()


def test_missing_and_damaged_parts_are_named(folder: Path, tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    split(folder, parts, 1000)
    name = sorted(file.name for file in parts.glob("*.part"))[-1]
    (parts / name).write_bytes(b"x")
    with pytest.raises(ContractMismatch, match=name):
        join(parts, tmp_path / "a")
    (parts / name).unlink()
    with pytest.raises(ContractMismatch, match=name):
        join(parts, tmp_path / "b")
    text = (parts / INDEX).read_text()
    (parts / INDEX).write_text(text.replace("deep/small.txt", "../small.txt"))
    with pytest.raises(ContractMismatch, match="outside"):
        join(parts, tmp_path / "c")
    with pytest.raises(InvalidRequest):
        join(tmp_path / "nothing", tmp_path / "d")
    assert main(["join", str(tmp_path / "nothing"), str(tmp_path / "e")]) == 1


def test_the_script_trains_from_parts_into_parts(tmp_path: Path) -> None:
    target = learnable_target(tmp_path / "target")
    data = answered(target, tmp_path / "data", prompts(20, seed=1), Asking((0.0,), max_tokens=20))
    split(target, tmp_path / "target-parts", 20_000)
    split(data, tmp_path / "data-parts", 20_000)
    recipe = tmp_path / "recipe.json"
    recipe.write_text(small_recipe(steps=4).model_dump_json())
    command = f"--target {tmp_path}/target-parts --shards {tmp_path}/data-parts --out {tmp_path}/out"
    command += f" --part-megabytes 0.02 --python {sys.executable} -- --recipe {recipe}"
    subprocess.run(
        ["deploy/gpu/train_demo.sh", *command.split()],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "DLITE_DEVICE": "cpu"},
        check=True,
        capture_output=True,
        timeout=240,
    )
    assert max(file.stat().st_size for file in (tmp_path / "out").glob("*.part")) <= 0.02 * (1 << 20)
    join(tmp_path / "out", tmp_path / "run")
    load_drafter(tmp_path / "run" / "drafter", target).self_test()
