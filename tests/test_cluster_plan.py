"""A cluster's YAML file: what it says, what is refused by name, and what would run (CLUSTER, Ray)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploy.cli import run
from deploy.cluster.plan import DRAFTS, TARGETS, plan
from deploy.cluster.spec import ClusterSpec, read_spec
from protos.errors import InvalidRequest

FILE = """
name: agents
placement: STRICT_SPREAD
target: {model: /models/m, replicas: 2, gpus: 1, cpus: 4, port: 7001, flags: [--tapped-layers, "0,1"]}
draft: {model: /models/d, replicas: 2, gpus: 0.25}
coordinator: {port: 7000}
"""


def spec(tmp_path: Path, text: str = FILE) -> ClusterSpec:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    return read_spec(path)


def test_a_plan_says_what_runs_in_which_order(tmp_path: Path) -> None:
    found = plan(spec(tmp_path))
    assert [actor.name for actor in found.actors] == [
        *("agents-target-0", "agents-target-1", "agents-draft-0", "agents-draft-1", "agents-coordinator-0")
    ]
    assert [actor.bundle for actor in found.actors] == list(range(5))
    second = found.actors[1]
    assert second.resources == {"CPU": 4.0, "GPU": 1.0}
    assert second.command == (
        *("target", "--target", "/models/m", "--threads", "4", "--address", "{node}:7002"),
        *("--tapped-layers", "0,1"),
    )
    assert found.actors[2].command[:5] == ("draft", "--drafter", "/models/d", "--target", "/models/m")
    assert (TARGETS in found.actors[4].command, DRAFTS in found.actors[4].command) == (True, True)
    assert found.totals() == {"CPU": 11.0, "GPU": 2.5}
    assert plan(spec(tmp_path)) == found


def test_without_a_drafter_there_is_none(tmp_path: Path) -> None:
    found = plan(spec(tmp_path, "target: {model: m}"))
    assert [actor.name for actor in found.actors] == ["dlite-target-0", "dlite-coordinator-0"]
    assert DRAFTS not in found.actors[-1].command


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("target: {}", "target.model"),
        ("target: {model: m, replica: 2}", "target.replica"),
        ("target: {model: m, gpus: 1.5}", "whole ones, or a part of one"),
        ("target: {model: m, port: 9999, replicas: 9}", "Ray's workers use 10002"),
        ("target: {model: m}\nplacement: ANYWHERE", "placement"),
        ("target: {model: m}\nname: 'Not A Name'", "name"),
        ("- 1", "dictionary"),
        ("a: [", "cannot read"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        spec(tmp_path, text)


def test_the_verb_prints_one_json_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE)
    with pytest.raises(SystemExit) as ended:
        run(["deploy", "plan", str(path), "--json"])
    assert ended.value.code == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["name"], len(shown["actors"])) == ("agents", 5)
    assert run(["deploy", "plan", str(tmp_path / "nothing.yaml")]) == 2
