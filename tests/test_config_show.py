"""Precedence of settings, and `dlite config show`, which tells where each comes from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coordinator.config import CoordinatorConfig
from deploy.cli import run
from draft_service.config import DraftConfig
from protos.config_origins import settings_of
from protos.errors import InvalidRequest

FILE = """
target:
  threads: 5
coordinator:
  target_address: file:1
  max_running: 11
  max_waiting: 12
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "dlite.yaml"
    path.write_text(FILE)
    return path


def test_flags_beat_the_environment_beats_the_file_beats_defaults(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLITE_COORDINATOR_MAX_WAITING", "22")
    monkeypatch.setenv("DLITE_COORDINATOR_MAX_RUNNING", "21")
    config = CoordinatorConfig.load(file, max_running=31)
    assert (config.max_running, config.max_waiting, config.target_address) == (31, 22, "file:1")
    assert config.max_queued_deltas == 64


def test_each_setting_says_where_it_comes_from(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "dlite_coordinator_max_waiting"  # the case of a variable's name does not matter
    monkeypatch.setenv(name, "22")
    found = settings_of(CoordinatorConfig, file, {name: "22"})
    rows = {row.name: (row.value, row.origin) for row in found.rows}
    assert rows["max_waiting"] == (22, f"environment {name}")
    assert rows["max_running"] == (11, f"file {file}")
    assert rows["max_queued_deltas"] == (64, "default")
    assert rows["target_address"] == ("file:1", f"file {file}")
    assert found.missing == ""
    assert set(rows) == set(CoordinatorConfig.model_fields)


def test_what_is_not_complete_is_told_beside_the_rest() -> None:
    found = settings_of(CoordinatorConfig, None, {})
    rows = {row.name: (row.value, row.origin) for row in found.rows}
    assert rows["target_address"] == (None, "not set, required")
    assert rows["max_running"] == (256, "default")
    assert found.missing == "coordinator.target_address: Field required"
    assert settings_of(DraftConfig, None, {}).missing == "draft: give exactly one of --drafter and --replay"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("coordinator: {max_runing: 3}", "max_runing"),
        ("coordinator: {max_running: many}", "max_running"),
        ("coordinators: {}", "coordinators"),
        ("- 3", "mapping"),
        ("a: [", "cannot read"),
    ],
)
def test_a_mistake_is_an_error_that_names_it(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "dlite.yaml"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match=message):
        settings_of(CoordinatorConfig, path, {})


def test_the_verb_prints_one_json_object(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DLITE_TARGET_THREADS", "3")
    with pytest.raises(SystemExit) as ended:
        run(["config", "show", "--origin", "--config", str(file), "--json"])
    assert ended.value.code == 0
    shown = json.loads(capsys.readouterr().out)
    assert list(shown) == ["target", "draft", "coordinator"]
    assert shown["target"]["threads"] == {"value": 3, "origin": "environment DLITE_TARGET_THREADS"}
    assert shown["coordinator"]["max_running"]["origin"] == f"file {file}"
    with pytest.raises(SystemExit):
        run(["config", "show", "--config", str(file), "--json", "coordinator"])
    shown = json.loads(capsys.readouterr().out)
    assert shown["coordinator"]["max_running"] == 11


def test_the_verb_prints_a_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit):
        run(["config", "show", "--origin", "coordinator"])
    out = capsys.readouterr().out
    assert "max_running" in out
    assert "not set, required" in out
    assert "not complete: coordinator.target_address" in out


def test_a_bad_value_is_bad_usage(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLITE_COORDINATOR_MAX_RUNNING", "many")
    assert run(["config", "show"]) == 2
    assert "max_running" in capsys.readouterr().err
