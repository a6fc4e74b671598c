"""Which services run on this machine, for its probes: a small file for each, by the process that holds it."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

VARIABLE = "DLITE_RUN_DIR"


def run_folder() -> Path:
    """$DLITE_RUN_DIR, or a folder of this user's in the system's place for such files."""
    given = os.environ.get(VARIABLE)
    return Path(given) if given else Path(tempfile.gettempdir()) / f"dlite-{os.getuid()}"


def note_service(name: str, address: str) -> None:
    """This process holds a service, and this is where it listens; empty while it starts."""
    folder = run_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = folder / f"{name}.json"
    whole = file.with_suffix(f".{os.getpid()}")
    whole.write_text(json.dumps({"address": address, "pid": os.getpid()}))
    whole.replace(file)


def forget_service(name: str) -> None:
    """It is stopped for good."""
    (run_folder() / f"{name}.json").unlink(missing_ok=True)


def services_here() -> dict[str, str]:
    """Address by name, of services whose holder lives: what another left behind is none."""
    found: dict[str, str] = {}
    for file in sorted(run_folder().glob("*.json")):
        try:
            record = json.loads(file.read_text())
            os.kill(int(record["pid"]), 0)
        except (OSError, ValueError, KeyError, TypeError):
            continue
        found[file.stem] = str(record["address"])
    return found
