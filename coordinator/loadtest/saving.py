"""Result files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protos.errors import InvalidRequest


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
