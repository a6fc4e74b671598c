"""Configuration and the `dlite draft` command."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from draft_service.config import DraftConfig
from draft_service.loader import load_drafter
from protos.errors import InvalidRequest
from tests.draft_client import NAME
from tests.golden_draft import GOLDEN, TARGET


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "exactly one"),
        ({"drafter": "a", "replay": "b"}, "exactly one"),
        ({"drafter": "a"}, "--target"),
        ({"replay": "a"}, "--acceptance"),
        ({"replay": "a", "acceptance": "1,2"}, "acceptance"),
        ({"drafter": "a", "target": "b", "threads": 0}, "threads"),
        ({"drafter": "a", "target": "b", "nonsense": 1}, "nonsense"),
    ],
)
def test_bad_configuration(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        DraftConfig.load(None, **values)


def test_configuration_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLITE_DRAFT_REPLAY", "file.jsonl")
    monkeypatch.setenv("DLITE_DRAFT_ACCEPTANCE", "1,0.5")
    config = DraftConfig.load(None, compute_ms=2.0)
    assert config.acceptance == (1.0, 0.5)
    assert config.replay == Path("file.jsonl")


DRAFT = (sys.executable, "-m", "deploy.cli", "draft")


def test_the_command_prints_one_object_and_stops_on_sigterm() -> None:
    command = [*DRAFT, "--drafter", str(GOLDEN / NAME), "--target", str(TARGET), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    with process.stdout:
        ready = json.loads(process.stdout.readline())
        assert ready["pid"] == process.pid
        assert ready["address"].startswith("127.0.0.1:")
        os.kill(process.pid, signal.SIGTERM)
        assert process.stdout.read() == ""
    assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("arguments", "code"), [(["--drafter", "nowhere", "--target", "nowhere"], 2), ([], 2), (["--bogus"], 2)]
)
def test_bad_usage_exits_with_2(arguments: list[str], code: int) -> None:
    done = subprocess.run([*DRAFT, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_a_damaged_drafter_exits_with_2(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / NAME, tmp_path / NAME)
    (tmp_path / NAME / "model.safetensors").write_bytes(b"damaged")
    arguments = ["--drafter", str(tmp_path / NAME), "--target", str(TARGET)]
    done = subprocess.run([*DRAFT, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("dlite draft: ")
    assert "model.safetensors" in done.stderr


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(InvalidRequest, match="'nowhere' cannot be used") as caught:
        load_drafter(GOLDEN / NAME, TARGET, device="nowhere")
    assert caught.value.field == "device"
