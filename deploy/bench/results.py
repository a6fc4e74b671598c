"""Committed results of yardsticks, and the table of them in the README."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BEGIN = "<!-- results: written by `dlite bench --table README.md`, do not edit -->"
END = "<!-- end of results -->"


def save(result: Mapping[str, Any], folder: Path) -> Path:
    """Writes `NAME.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result['name']}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path


def load(folder: Path) -> list[dict[str, Any]]:
    """All results of yardsticks in a folder, by name; other figures that are kept there have no bar."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return [result for result in found if "bar" in result]


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """A markdown table: command, result with its spread over runs, bar, commit, machine."""
    if not results:
        return "No results are committed yet."
    lines = ["| command | result | bar | commit |", "|---|---|---|---|"]
    for result in results:
        met = "met" if result["pass"] else "**not met**"
        lines.append(
            f"| `dlite bench {result['name']}` | {_value(result)} | {result['bar']:g}, {met} "
            f"| {result['commit'][:9]} |"
        )
    machines = sorted({f"{r['machine']['cores']} cores of {r['machine']['cpu']}" for r in results})
    return "\n".join([*lines, "", f"Measured on {'; '.join(machines)}."])


def _value(result: Mapping[str, Any]) -> str:
    text = f"{result['value']:.4g} {result['unit']}"
    tokens = sum(run.get("tokens", 0) for run in result["runs"])
    ties = sum(len(run.get("near_ties", ())) for run in result["runs"])
    return f"{text} ({tokens} tokens compared, {ties} near-ties)" if tokens else text


def with_table(document: str, results: Sequence[Mapping[str, Any]]) -> str:
    """The document with the table between its markers.

    Raises:
        ValueError: the document has no markers.
    """
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"no lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n{table(results)}\n{END}{after}"
