"""A cluster's YAML file: what it says, what is refused by name, and what would run (CLUSTER, Ray)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploy.cli import run
from deploy.cluster.plan import DRAFTS, TARGETS, command_line, plan, replica
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
        *("target", "--target", "/models/m", "--threads", "4", "--device", "cuda"),
        *("--address", "{node}:7002", "--tapped-layers", "0,1"),
    )
    assert found.actors[2].command[:5] == ("draft", "--drafter", "/models/d", "--target", "/models/m")
    assert found.actors[2].command[5:9] == ("--threads", "1", "--device", "cuda")
    assert (TARGETS in found.actors[4].command, DRAFTS in found.actors[4].command) == (True, True)
    assert found.totals() == {"CPU": 11.0, "GPU": 2.5}
    assert plan(spec(tmp_path)) == found


def test_without_a_drafter_there_is_none(tmp_path: Path) -> None:
    found = plan(spec(tmp_path, "target: {model: m}"))
    assert [actor.name for actor in found.actors] == ["dlite-target-0", "dlite-coordinator-0"]
    assert DRAFTS not in found.actors[-1].command


def test_addresses_are_put_in_when_they_are_known(tmp_path: Path) -> None:
    coordinator = plan(spec(tmp_path)).actors[4]
    assert command_line(coordinator.command, "10.0.0.1", ["a:1", "b:2"], ["c:3"]) == (
        *("coordinator", "--target-address", "a:1,b:2", "--draft-address", "c:3"),
        *("--admin-address", "10.0.0.1:0", "--address", "10.0.0.1:7000"),
    )
    assert "--draft-address" not in command_line(coordinator.command, "10.0.0.1", ["a:1"], [])


def test_replicas_of_one_kind_do_the_same(tmp_path: Path) -> None:
    """So that `up` knows them again, whatever their ports and places."""
    described = spec(tmp_path)
    first, second = plan(described).of("target")
    assert (first.does, first.command) == (second.does, first.command)
    assert first.command != second.command
    later = replica(described, "target", 7)
    assert (later.name, later.bundle, later.does) == ("agents-target-7", None, first.does)
    assert plan(described).of("draft")[0].does != first.does
    with pytest.raises(InvalidRequest, match="no draft"):
        replica(spec(tmp_path, "target: {model: m}"), "draft", 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("target: {}", "target.model"),
        ("target: {model: m, replica: 2}", "target.replica"),
        ("target: {model: m, gpus: 1.5}", "whole ones, or a part of one"),
        ("target: {model: m, port: 9999, replicas: 9}", "Ray's workers use 10002"),
        ("target: {model: m}\nplacement: ANYWHERE", "placement"),
        ("target: {model: m}\nname: 'Not A Name'", "name"),
        ("target: {model: m}\ndraft: {model: d, autoscale: {min: 3, max: 2}}", "max 2 is below min 3"),
        ("target: {model: m}\ndraft: {model: d, autoscale: {window_seconds: 0.5}}", "window_seconds"),
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
