"""Which request parameter works in which mode, as a table in the README, from tests/proof.toml.

A row of the proof that has `modes` and `parameters` says that its tests show each of these parameters
in each of these modes; the suite checks that such a test exists for every cell.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BEGIN = "<!-- parameters: written by `dlite bench --table README.md`, do not edit -->"
END = "<!-- end of parameters -->"
# What a mode promises, in the order of the columns.
MODES = {"greedy": "ids", "coupled": "ids", "match": "ids", "rejection": "law"}
# They shape a draw, and greedy decoding draws nothing.
_NO_EFFECT = {(name, "greedy") for name in ("temperature", "top_k", "top_p", "min_p")}


def read_rows(proof: Path) -> list[dict[str, Any]]:
    """Rows of the proof that say something of parameters."""
    rows = tomllib.loads(proof.read_text())["row"]
    return [row for row in rows if row.get("modes")]


def matrix(rows: Sequence[Mapping[str, Any]]) -> str:
    """A markdown table, parameters x modes."""
    shown: dict[str, set[str]] = {}
    for row in rows:
        for parameter in row["parameters"]:
            shown.setdefault(parameter, set()).update(row["modes"])
    lines = [f"| parameter | {' | '.join(MODES)} |", f"|---|{'---|' * len(MODES)}"]
    for parameter, modes in shown.items():
        cells = [_cell(parameter, mode, modes) for mode in MODES]
        lines.append(f"| `{parameter}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(parameter: str, mode: str, shown: set[str]) -> str:
    if (parameter, mode) in _NO_EFFECT:
        return "no effect"
    return MODES[mode] if mode in shown else ""


def with_matrix(document: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """The document with the table between its markers; unchanged if it has none."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{BEGIN}\n{matrix(rows)}\n{END}{after}" if begin and end else document
