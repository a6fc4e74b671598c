"""The `dlite` script: light, exact about its exit codes, one JSON object on stdout."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer

from deploy import cli
from protos import errors

HEAVY = ("torch", "transformers", "grpc", "ray")


def dlite(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "deploy.cli", *args],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "120", "NO_COLOR": "1", **environment},
        check=False,
    )


def heavy_after(args: Sequence[str]) -> set[str]:
    """Which heavy libraries are loaded after a command line, exit or not."""
    code = (
        "import sys\nfrom deploy.cli import run\n"
        f"try:\n    run({list(args)!r})\nexcept SystemExit:\n    pass\n"
        f"print(*[m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    return set(result.stderr.split())


def test_help_names_every_verb() -> None:
    result = dlite("--help")
    assert result.returncode == 0
    for name, verb in cli.VERBS.items():
        assert f"{name} " in result.stdout
        assert verb.summary in result.stdout


@pytest.mark.parametrize("args", [[], ["--help"], ["--version"], ["nonsense"]], ids=str)
def test_the_script_itself_is_light(args: list[str]) -> None:
    assert heavy_after(args) & set(HEAVY) == set()


@pytest.mark.parametrize("verb", cli.VERBS)
def test_help_of_a_verb_is_light(verb: str) -> None:
    assert heavy_after([verb, "--help"]) == set()


@pytest.mark.parametrize("verb", cli.VERBS)
def test_help_of_a_verb_is_about_that_verb(verb: str) -> None:
    result = dlite(verb, "--help")
    assert result.returncode == 0, result.stderr
    assert f"dlite {verb}" in result.stdout
    assert "--help" in result.stdout


@pytest.mark.parametrize("verb", ["up", "generate", "demo", "bench", "target", "draft", "coordinator"])
def test_help_offers_json(verb: str) -> None:
    assert "--json" in dlite(verb, "--help").stdout


def test_version() -> None:
    assert dlite("--version").stdout.startswith("dlite 0.")


def test_an_unknown_verb_is_bad_usage() -> None:
    result = dlite("nonsense")
    assert (result.returncode, result.stdout) == (2, "")
    assert "nonsense" in result.stderr
    assert "generate" in result.stderr


@pytest.mark.parametrize("verb", cli.VERBS)
def test_an_unknown_flag_is_bad_usage(verb: str) -> None:
    result = dlite(verb, "--no-such-flag")
    assert (result.returncode, result.stdout) == (2, "")
    assert "--no-such-flag" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["up", "--target", "no-such-model"], "no-such-model"),
        (["up", "--target", "."], "config.json"),
        (["up", "--verify-block-size", "0"], "--verify-block-size"),
        (["demo", "--target", "no-such-model"], "no-such-model"),
        (["demo", "--prompts", "0"], "--prompts"),
        (["target", "--target", "no-such-model"], "no-such-model"),
        (["draft"], "--drafter"),
        (["coordinator"], "target"),
        (["bench", "no-such-yardstick"], "no-such-yardstick"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_configuration_is_one_clear_message(args: list[str], words: str) -> None:
    result = dlite(*args, HF_HUB_OFFLINE="1")
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert words in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidRequest("no", field="k"), 2),
        (errors.ContractMismatch("no"), 2),
        (errors.NotFound("no"), 2),
        (errors.Unavailable("no"), 1),
        (errors.OutOfPages("no"), 1),
        (errors.DliteError("no"), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_become_a_line_and_a_code(
    error: errors.DliteError, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(name: str, args: Sequence[str]) -> None:
        raise error

    monkeypatch.setattr(cli, "_run_verb", failing)
    assert cli.run(["up"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"dlite up: {error}\n"


@pytest.mark.parametrize("verb", cli.VERBS)
def test_no_command_turns_errors_into_codes_itself(verb: str) -> None:
    spec = find_spec(cli.VERBS[verb].module)
    assert spec is not None
    assert spec.origin is not None
    handlers = [
        ast.unparse(node.type)
        for node in ast.walk(ast.parse(Path(spec.origin).read_text()))
        if isinstance(node, ast.ExceptHandler) and node.type is not None
    ]
    assert not [names for names in handlers if any(name in names for name in vars(errors))]


def test_a_commands_own_exit_code_passes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(name: str, args: Sequence[str]) -> None:
        raise SystemExit(typer.Exit(1).exit_code)

    monkeypatch.setattr(cli, "_run_verb", failing)
    with pytest.raises(SystemExit) as caught:
        cli.run(["up"])
    assert caught.value.code == 1


def test_bench_list_is_one_json_object() -> None:
    result = dlite("bench", "--list", "--json")
    assert result.returncode == 0, result.stderr
    listed = json.loads(result.stdout)
    assert {"equality", "disaggregation"} <= {row["name"] for row in listed["yardsticks"]}
