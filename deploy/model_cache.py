"""The user's cache of prepared model folders: complete or absent, never half written.

A folder is built beside its final place and renamed into it, with a manifest of sizes and sha256
sums. A lock keeps two processes from building the same folder at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from protos.errors import InvalidRequest

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class FileRecord:
    """What a file of a prepared folder must be. `mtime_ns` only saves hashing it again."""

    num_bytes: int
    mtime_ns: int
    sha256: str


def cache_root() -> Path:
    """$XDG_CACHE_HOME/dlite, or ~/.cache/dlite; the home comes from the password file when the
    environment has none.

    Raises:
        InvalidRequest: there is no home folder either.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "dlite"
    try:
        return Path.home() / ".cache" / "dlite"
    except RuntimeError as error:
        raise InvalidRequest("no home folder: say where to keep models", field="XDG_CACHE_HOME") from error


@contextlib.contextmanager
def _locked(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield  # closing the file ends the lock


def sha256_of(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_manifest(folder: Path) -> None:
    records = {}
    for path in sorted(p for p in folder.iterdir() if p.is_file()):
        stat = path.stat()
        records[path.name] = asdict(FileRecord(stat.st_size, stat.st_mtime_ns, sha256_of(path)))
    (folder / MANIFEST).write_text(json.dumps({"files": records}, indent=1) + "\n")


def is_complete(folder: Path) -> bool:
    """Whether every file is what the manifest says. A file is hashed again only if it was touched."""
    try:
        files = json.loads((folder / MANIFEST).read_text())["files"]
        records = {name: FileRecord(**record) for name, record in files.items()}
        return bool(records) and all(_unchanged(folder / name, record) for name, record in records.items())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _unchanged(path: Path, record: FileRecord) -> bool:
    stat = path.stat()
    if stat.st_size != record.num_bytes:
        return False
    return stat.st_mtime_ns == record.mtime_ns or sha256_of(path) == record.sha256


def prepared(
    name: str,
    build: Callable[[Path], None],
    *,
    root: Path | None = None,
    waiting: Callable[[], None] = lambda: None,
) -> Path:
    """The folder `name` of the cache, built first if it is absent or damaged.

    Args:
        name: folder name; put the version of the recipe into it.
        build: fills an empty folder; may raise, nothing is left then.
        root: cache folder; None means the user's.
        waiting: called when another process is building the same folder.
    """
    root = root or cache_root()
    final = root / name
    if is_complete(final):
        return final
    with _locked(root / f".{name}.lock", waiting):
        if is_complete(final):  # the process we waited for has built it
            return final
        with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=root) as scratch:
            fresh = Path(scratch) / name
            fresh.mkdir()
            build(fresh)
            _write_manifest(fresh)
            shutil.rmtree(final, ignore_errors=True)
            fresh.rename(final)
    return final
