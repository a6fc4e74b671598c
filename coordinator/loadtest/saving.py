"""Result files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protos.errors import InvalidRequest

if TYPE_CHECKING:
    from coordinator.loadtest.figures import ReportPoint
    from coordinator.loadtest.options import Shown


def file_name(result: Mapping[str, Any]) -> str:
    """`{label}-{rate}qps[-concurrencyN]-{model}-{date}.json`."""
    label = result["label"] or result["backend"]
    limit = f"-concurrency{result['max_concurrency']}" if result["max_concurrency"] else ""
    model = str(result["model_id"]).rstrip("/").rpartition("/")[2]
    name = f"{label}-{result['request_rate']}qps{limit}-{model}-{result['date']}"
    return re.sub(r"[^\w.+-]", "_", name) + ".json"


def save(document: Mapping[str, Any], path: Path, append: bool = False) -> None:
    """Writes one JSON object; `append` adds it as a further line.

    Raises:
        InvalidRequest: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if append else "w", encoding="utf-8") as file:
            file.write(json.dumps(document) + "\n")
    except OSError as error:
        raise InvalidRequest(f"cannot write {path}: {error}", field="--result-dir") from error


def save_report(folder: Path, points: Sequence[ReportPoint], shown: Shown) -> Path:
    """Writes `report.html`, which holds all figures, and each figure as a PNG beside it.

    Args:
        points: of one sweep, each with its details.

    Raises:
        InvalidRequest: a file cannot be written, or matplotlib is missing.
    """
    from coordinator.loadtest.figures import pictures
    from coordinator.loadtest.report import page

    drawn = pictures(points)
    path = folder / "report.html"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(page([point.result for point in points], drawn, shown), encoding="utf-8")
        for picture in drawn:
            (folder / f"{picture.name}.png").write_bytes(picture.png)
    except OSError as error:
        raise InvalidRequest(f"cannot write {path}: {error}", field="--report") from error
    return path
