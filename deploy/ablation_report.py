"""The result of ablations: gathered from the arms, checked for fairness, and shown as tables.

The check is of what makes arms comparable (budgets, data, texts, provenance), never of their values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deploy.ablation_arms import BASE_ARM, GROUPS, HISTORY_NETS, Row
from deploy.ablation_errors import Counts, difference_error
from deploy.bench.harness import commit, machine
from draft_service.training.state import digest_of

NAME = "ablations"
BASELINES = "baselines"
LEAST_LONG_BUDGET = 150_000

Record = Mapping[str, Any]


def budget(
    anchors: int, groups: Mapping[str, Sequence[Row]], records: Mapping[str, Record]
) -> dict[str, Any]:
    """What one call found: the rows of each ablation by arm, and each arm once."""
    rows = {
        name: [{"label": row.label, "arm": row.arm.name} for row in found] for name, found in groups.items()
    }
    return {"anchors": anchors, "groups": rows, "arms": dict(records)}


def report(budgets: Sequence[Mapping[str, Any]], before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The whole result; budgets and ablations of an earlier one that are not in this one are kept."""
    found = {one["anchors"]: one for one in (before or {}).get("budgets", [])}
    for one in budgets:
        old = found.get(one["anchors"], {"groups": {}, "arms": {}})
        found[one["anchors"]] = {
            "anchors": one["anchors"],
            "groups": {**old["groups"], **one["groups"]},
            "arms": {**old["arms"], **one["arms"]},
        }
    ordered = [found[anchors] for anchors in sorted(found)]
    faults = problems(ordered)
    return {
        "name": NAME,
        "pass": not faults,
        "problems": faults,
        "budgets": ordered,
        "machine": machine(),
        "commit": commit(),
    }


def problems(budgets: Sequence[Mapping[str, Any]]) -> list[str]:
    """What keeps the arms from being compared, in words; empty when all is there and fair."""
    found: list[str] = []
    small = budgets[0]["groups"] if budgets else {}
    found += [f"no ablation {group} at the small budget" for group in GROUPS if group not in small]
    long = [one for one in budgets if one["anchors"] >= LEAST_LONG_BUDGET]
    if not any(BASELINES in one["groups"] for one in long):
        found.append(f"no {BASELINES} at a budget of {LEAST_LONG_BUDGET} anchors or more")
    for one in budgets:
        found += [f"{one['anchors']} anchors: {fault}" for fault in _faults(one)]
    return found


def _faults(one: Mapping[str, Any]) -> list[str]:
    arms: Mapping[str, Record] = one["arms"]
    named = {row["arm"] for rows in one["groups"].values() for row in rows}
    found = [f"arm {name} is missing" for name in sorted(named - set(arms))]
    for name, arm in arms.items():
        recipe = arm["provenance"]["recipe"]
        if digest_of(arm["provenance"]) != arm["digest"]:
            found.append(f"the digest of {name} is not that of its provenance")
        if recipe["steps"] * recipe["batch_anchors"] != arm["anchors"]:
            found.append(f"{name} has another budget than its recipe")
        if not one["anchors"] - recipe["batch_anchors"] < arm["anchors"] <= one["anchors"]:
            found.append(f"{name} was trained with {arm['anchors']} anchors")
    if len({digest_of(arm["provenance"]["data"]) for arm in arms.values()}) > 1:
        found.append("the arms have different data")
    for name in sorted({name for arm in arms.values() for name in arm["texts"]}):
        if len({arm["texts"][name] for arm in arms.values() if name in arm["texts"]}) > 1:
            found.append(f"the arms have different {name} texts")
    for group, rows in one["groups"].items():
        walked = [set(arms[row["arm"]]["texts"]) for row in rows if row["arm"] in arms]
        if not set.intersection(*walked) or (group == BASELINES and set.union(*walked) != walked[0]):
            found.append(f"the arms of {group} were not walked on the same texts")
        recipes = [arms[name]["provenance"]["recipe"] for name in _order_of(rows) if name in arms]
        for field in ("seed", "anchors_per_text", "batch_anchors", "held_out_fraction"):
            if len({recipe.get(field) for recipe in recipes}) > 1:
                found.append(f"the arms of {group} differ in {field}")
    return found


def _order_of(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """The arms that must have one order of the data: beside baselines, the recipe keeps its own."""
    names = [row["arm"] for row in rows]
    others = [name for name in names if name != BASE_ARM]
    return others if any(name in HISTORY_NETS for name in names) else names


def markdown(result: Mapping[str, Any]) -> str:
    """All tables."""
    lines = ["# Ablations", "", "Written by `dlite ablate`; tau is walked on held-out greedy texts.", ""]
    for one in result["budgets"]:
        lines += [f"## {one['anchors']} anchors an arm", ""]
        for group, rows in one["groups"].items():
            lines += [*_table(group, rows, one["arms"]), ""]
        if BASELINES in one["groups"]:
            lines += [*_contexts(one["groups"][BASELINES], one["arms"]), ""]
    if result["problems"]:
        lines += ["Not comparable yet:", "", *(f"* {fault}" for fault in result["problems"]), ""]
    return "\n".join(lines)


def _table(group: str, rows: Sequence[Mapping[str, str]], arms: Mapping[str, Record]) -> list[str]:
    lines = [
        f"| {group} | tau | against the recipe | tau, 2 proposals | tau, 4 proposals | a1 | a2 | a3 "
        "| ms a round | weights MB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        arm = arms[row["arm"]]
        own = arm["sets"][0]
        by_k, accepted = own["tau_by_k"], own["conditional"]
        first = [_number(value) for value in [*accepted, None, None][:3]]
        error = "" if own["tau_error"] is None else f" ± {own['tau_error']:.3f}"
        cells = [
            row["label"],
            f"{own['tau']:.3f}{error}",
            _against(own, arms[BASE_ARM]["sets"][0]),
            _number(by_k.get("2")),
            _number(by_k.get("4")),
            *first,
            f"{arm['cost'][0]['least_milliseconds']:.2f}",
            f"{arm['weight_bytes'] / 1e6:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _against(own: Mapping[str, Any], base: Mapping[str, Any]) -> str:
    """The difference of tau on the same texts, with its own error."""
    if own["counts"] == base["counts"]:
        return "-"
    ours, theirs = ([Counts(*pair) for pair in one["counts"]] for one in (own, base))
    error = difference_error(ours, theirs)
    return f"{own['tau'] - base['tau']:+.3f}" + ("" if error is None else f" ± {error:.3f}")


def _contexts(rows: Sequence[Mapping[str, str]], arms: Mapping[str, Record]) -> list[str]:
    """tau by texts; time and memory of a round by context."""
    sets = arms[rows[0]["arm"]]["sets"]
    heads = [f"tau, {one['name']} ({one['context']} tokens)" for one in sets]
    contexts = [one["context"] for one in arms[rows[0]["arm"]]["cost"]]
    heads += [f"ms at {context}" for context in contexts] + [f"kB kept at {context}" for context in contexts]
    lines = [f"| drafter | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for row in rows:
        arm = arms[row["arm"]]
        cells = [_number(one["tau"]) for one in arm["sets"]]
        cells += [f"{one['least_milliseconds']:.2f}" for one in arm["cost"]]
        cells += [f"{one['state_bytes'] / 1e3:.0f}" for one in arm["cost"]]
        lines.append(f"| {row['label']} | {' | '.join(cells)} |")
    shares = sorted({f"{one['name']} {one['history']:.0%}" for one in sets})
    return [*lines, "", f"Rows of history that the texts hold: {', '.join(shares)}."]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
