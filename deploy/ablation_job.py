"""One call of `dlite ablate`: data and texts opened, arms run one after another, tables written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deploy.ablation_arms import ALL, BASE, GROUPS, Shape, rows_of
from deploy.ablation_figure import draw
from deploy.ablation_report import BASELINES, NAME, budget, markdown, report
from deploy.ablation_run import Bench, run_arm
from deploy.ablation_texts import context_texts, held_out_texts, whole_history
from deploy.demo_model import resolve_model
from deploy.train import TrainingBar
from draft_service.training.data import TrainingData
from draft_service.training.recipe import read_recipe
from protos.errors import InvalidRequest
from protos.shard_manifest import write_atomically


@dataclass(frozen=True)
class Asked:
    """Fields as in `dlite ablate`."""

    data: tuple[Path, ...]
    out: Path
    target: str
    anchors: int
    recipe: Path | None
    changes: tuple[str, ...]
    context_data: tuple[Path, ...]
    num_context_texts: int
    whole_history: bool
    costs_again: bool
    threads: int


def chosen(names: Sequence[str]) -> tuple[str, ...]:
    """The ablations that names stand for.

    Raises:
        InvalidRequest: an unknown name.
    """
    for name in names:
        if name not in (ALL, *GROUPS):
            raise InvalidRequest(
                f"no ablation {name!r}; there are {', '.join(GROUPS)}, {ALL}", field="groups"
            )
    return GROUPS if ALL in names else tuple(dict.fromkeys(names))


def open_bench(asked: Asked) -> Bench:
    """Opens data and texts; exports rows of history where they are wanted and not there.

    Raises:
        InvalidRequest, NotFound, ContractMismatch: something does not fit together.
    """
    target = resolve_model(asked.target)
    base = _base(asked)
    exported = asked.out / "whole"
    folders = asked.data
    if asked.whole_history:
        folders = tuple(whole_history(folder, target, exported) for folder in folders)
    data = TrainingData(folders, (), float(str(base.get("held_out_fraction", 0.05))))
    contexts = []
    for folder in asked.context_data:
        sets = context_texts(folder, asked.num_context_texts)
        texts = [sequence for one in sets for sequence in one.sequences]
        whole = whole_history(folder, target, exported, texts)
        contexts += context_texts(whole, asked.num_context_texts)
    held_out = held_out_texts(folders, float(str(base.get("held_out_fraction", 0.05))))
    return Bench(
        data, target, held_out, contexts, base, asked.anchors, asked.out, asked.threads, asked.costs_again
    )


def _base(asked: Asked) -> dict[str, object]:
    """The common recipe: ours, the file's, the changes; in that order."""
    values: dict[str, object] = dict(BASE)
    if asked.recipe is not None or asked.changes:
        given = read_recipe(asked.recipe, asked.changes)
        named = given.model_fields_set - {"steps"}
        values |= {field: getattr(given, field) for field in named}
    return values


def run(
    names: Sequence[str], bench: Bench, results: Path, only: Sequence[str] = ()
) -> tuple[dict[str, Any], str]:
    """Runs the arms and writes ablations.json, .md and .png after each ablation, so that nothing is lost.

    Args:
        only: the arms to run, by name; empty means all. An ablation is written once all its arms are done.

    Returns:
        The result, and its tables; empty where no ablation is whole.

    Raises:
        InvalidRequest: `only` names an arm that none of these ablations has.
    """
    manifest = bench.data.manifests[0]
    shape = Shape(tuple(manifest.tapped_layers), manifest.target.vocab_size)
    tables = {name: rows_of(name, shape, bench.base) for name in names}
    known = {row.arm.name for rows in tables.values() for row in rows}
    if unknown := sorted(set(only) - known):
        raise InvalidRequest(f"no arm {unknown[0]!r}; there are {', '.join(sorted(known))}", field="--arm")
    result: dict[str, Any] = {}
    measured: set[str] = set()
    for name, rows in tables.items():
        texts = [bench.held_out, *(bench.contexts if name == BASELINES else ())]
        records = {}
        for arm in [row.arm for row in rows if not only or row.arm.name in only]:
            costs_again = bench.costs_again and arm.name not in measured
            with TrainingBar(arm.name) as bar:
                records[arm.name] = run_arm(arm, replace(bench, costs_again=costs_again), texts, bar)
            measured.add(arm.name)
        if {row.arm.name for row in rows} == set(records):
            result = _written(budget(bench.anchors, {name: rows}, records), results)
    return result, markdown(result) if result else ""


def _written(found: dict[str, Any], results: Path) -> dict[str, Any]:
    results.mkdir(parents=True, exist_ok=True)
    file = results / f"{NAME}.json"
    before = json.loads(file.read_text()) if file.exists() else None
    result = report([found], before)
    write_atomically(file, (json.dumps(result, indent=1) + "\n").encode())
    write_atomically(results / f"{NAME}.md", markdown(result).encode())
    draw(result, results / f"{NAME}.png")
    return result
