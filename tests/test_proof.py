"""Every promise of an issue has a row in proof.toml, and what a row names exists and is not skipped.

A row without evidence is listed, not failed. A wrong build that its check lets pass is a failure.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from tests import (
    wrong_api_builds,
    wrong_builds,
    wrong_cluster_builds,
    wrong_engine_builds,
    wrong_fault_builds,
    wrong_link_builds,
    wrong_pool_builds,
    wrong_report_builds,
    wrong_round_builds,
    wrong_shipping_builds,
    wrong_target_builds,
    wrong_wire_builds,
)
from tests.conftest import RECORD, RunRecord
from tests.wrong_builds import WrongBuild

WRONG_BUILDS = {
    **wrong_builds.WRONG_BUILDS,
    **wrong_engine_builds.ENGINE_BUILDS,
    **wrong_fault_builds.FAULT_BUILDS,
    **wrong_api_builds.API_BUILDS,
    **wrong_link_builds.LINK_BUILDS,
    **wrong_wire_builds.WIRE_BUILDS,
    **wrong_cluster_builds.CLUSTER_BUILDS,
    **wrong_pool_builds.POOL_BUILDS,
    **wrong_report_builds.REPORT_BUILDS,
    **wrong_round_builds.ROUND_BUILDS,
    **wrong_shipping_builds.SHIPPING_BUILDS,
    **wrong_target_builds.TARGET_BUILDS,
}
ROOT = Path(__file__).parent.parent


class Row(BaseModel):
    """One promise. `shows` are test nodes (all parameters of a test, unless one is named)."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    issue: str
    id: str
    says: str
    shows: tuple[str, ...] = ()
    bench: str = ""
    result: str = ""
    ci: str = ""
    wrong_builds: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.shows or self.bench or self.result or self.ci)


ROWS = [Row(**row) for row in tomllib.loads((ROOT / "tests" / "proof.toml").read_text())["row"]]


@pytest.fixture(scope="module")
def collected(pytestconfig: pytest.Config) -> frozenset[str]:
    """Every node of the suite, whatever its marker."""
    record = pytestconfig.stash[RECORD]
    return frozenset(record.proofs) if record.is_full else frozenset(collect())


def collect() -> Iterable[str]:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
        check=False,
    )
    assert run.returncode == 0, run.stdout[-2000:]
    return [line for line in run.stdout.splitlines() if "::" in line]


def nodes_of(name: str, nodes: Iterable[str]) -> list[str]:
    """The nodes that a name in a row stands for."""
    return [node for node in nodes if node == name or node.startswith((name + "[", name + "::"))]


def test_rows_are_unique() -> None:
    keys = [(row.issue, row.id) for row in ROWS]
    assert len(set(keys)) == len(keys)


def test_named_tests_exist(collected: frozenset[str]) -> None:
    missing = [f"{row.id}: {name}" for row in ROWS for name in row.shows if not nodes_of(name, collected)]
    assert not missing


def test_every_cell_of_the_parameter_matrix_has_a_test(collected: frozenset[str]) -> None:
    from tests.conformance import PARAMETERS

    for row in ROWS:
        if row.modes:
            assert set(row.parameters) == set(PARAMETERS), row.id
            cells = {f"{name}-{mode}" for name in row.parameters for mode in row.modes}
            node = row.shows[0]
            found = {one.removeprefix(node).strip("[]") for one in nodes_of(node, collected)}
            # One node for all parameters, one for each, or one for each cell.
            assert found in ({""}, set(row.parameters), {*row.parameters, "without"}, cells), row.id


def test_the_readme_has_the_parameter_matrix() -> None:
    from deploy.bench.matrix import MODES, read_rows, with_matrix

    document = (ROOT / "README.md").read_text()
    assert document == with_matrix(document, read_rows(ROOT / "tests" / "proof.toml"))
    assert {mode for row in ROWS for mode in row.modes} == set(MODES)


def unproved(record: RunRecord, is_proof: bool) -> list[str]:
    """Named nodes of one kind that did not pass in this run."""
    return [
        f"{row.id}: {node} {record.outcomes.get(node, 'was not run')}"
        for row in ROWS
        for name in row.shows
        for node in nodes_of(name, record.proofs)
        if record.proofs[node] is is_proof and record.outcomes.get(node) != "passed"
    ]


def test_named_tests_passed_in_a_full_run(run_record: RunRecord, pytestconfig: pytest.Config) -> None:
    """Skipped, xfailed and deselected tests show nothing."""
    if run_record.is_full and pytestconfig.option.markexpr in ("", "not prove"):
        assert not unproved(run_record, is_proof=False)


@pytest.mark.prove
def test_named_proofs_passed_in_a_full_run(run_record: RunRecord, pytestconfig: pytest.Config) -> None:
    if run_record.is_full and pytestconfig.option.markexpr in ("", "prove"):
        assert not unproved(run_record, is_proof=True)


def test_named_benches_exist() -> None:
    from deploy.bench.cli import YARDSTICKS

    for row in ROWS:
        if row.bench:
            program, verb, name = row.bench.split()[:3]
            assert (program, verb) == ("dlite", "bench"), row.id
            assert name in YARDSTICKS, row.id


def test_named_results_are_passing_results() -> None:
    for row in ROWS:
        if row.result:
            report = json.loads((ROOT / row.result).read_text())
            assert report["pass"] is True, row.id


def test_named_parts_of_ci_exist() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert not [row.id for row in ROWS if row.ci and f'part "{row.ci}"' not in script]


def test_named_wrong_builds_exist_and_each_is_named() -> None:
    named = {name for row in ROWS for name in row.wrong_builds}
    assert named == set(WRONG_BUILDS)


def test_rows_without_evidence_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    empty = [f"{row.issue} {row.id}: {row.says}" for row in ROWS if row.is_empty]
    if empty:
        with capsys.disabled():
            print(f"\nproof.toml: {len(empty)} of {len(ROWS)} rows have no evidence yet")
            print("\n".join(f"  {line}" for line in empty))


def check_of(build: WrongBuild) -> Callable[..., Any]:
    path, _, name = build.check.partition("::")
    module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    check: Callable[..., Any] = getattr(module, name)
    return check


def run_check(build: WrongBuild, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a test function in process; it may take keyword arguments and monkeypatch, no fixtures."""
    check = check_of(build)
    arguments = dict(build.arguments)
    if "monkeypatch" in inspect.signature(check).parameters:
        arguments["monkeypatch"] = monkeypatch
    result = check(**arguments)
    if inspect.iscoroutine(result):
        asyncio.run(result)


@pytest.mark.parametrize("name", WRONG_BUILDS)
def test_a_wrong_build_is_caught(name: str, collected: frozenset[str]) -> None:
    build = WRONG_BUILDS[name]
    assert nodes_of(build.check, collected), f"{build.check} is no test of the suite"
    with pytest.MonkeyPatch.context() as monkeypatch:
        run_check(build, monkeypatch)  # the right build passes
    with pytest.MonkeyPatch.context() as monkeypatch:
        build.apply(monkeypatch)
        with pytest.raises(AssertionError):
            run_check(build, monkeypatch)


def test_markers_cover_every_run() -> None:
    """A marker expression this file does not know would leave the proofs unchecked."""
    makefile = (ROOT / "Makefile").read_text()
    used = {part.split('"')[0] for part in makefile.split('-m "')[1:]}
    assert used == {"not prove"}
    assert "pytest -m prove" in makefile
