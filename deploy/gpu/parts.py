"""Folders as parts of limited size, for machines that take small files only.

    python -m deploy.gpu.parts split FOLDER PARTS [--part-megabytes 15]
    python -m deploy.gpu.parts join  PARTS FOLDER

PARTS holds `parts.json` and numbered files. Joining checks every part and every file by sha256, and
leaves a file that is right already as it is.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from protos.errors import ContractMismatch, DliteError, InvalidRequest
from protos.shard_manifest import file_sha256, write_atomically

INDEX = "parts.json"
_MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Part:
    name: str
    sha256: str


@dataclass(frozen=True)
class PartedFile:
    """One file of the folder: where it goes, its hash, its parts in order."""

    path: str
    sha256: str
    parts: tuple[Part, ...]


def split(folder: Path, parts: Path, part_bytes: int) -> list[PartedFile]:
    """Writes a folder's files as parts.

    Raises:
        InvalidRequest: the folder has no file, or parts would be empty.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if not files or part_bytes < 1:
        raise InvalidRequest(f"{folder} has no files to split into parts of {part_bytes} bytes")
    parts.mkdir(parents=True, exist_ok=True)
    found = []
    for number, file in enumerate(files):
        named = []
        for index, data in enumerate(_blocks(file, part_bytes)):
            part = Part(f"{number:04d}-{index:04d}.part", hashlib.sha256(data).hexdigest())
            write_atomically(parts / part.name, data)
            named.append(part)
        found.append(PartedFile(file.relative_to(folder).as_posix(), file_sha256(file), tuple(named)))
    index_text = json.dumps([asdict(one) for one in found], indent=1) + "\n"
    write_atomically(parts / INDEX, index_text.encode())
    return found


def _blocks(file: Path, size: int) -> Iterator[bytes]:
    with file.open("rb") as stream:
        yield stream.read(size)
        while block := stream.read(size):
            yield block


def join(parts: Path, folder: Path) -> list[Path]:
    """Writes the files that the parts hold; returns them.

    Raises:
        InvalidRequest: there is no index of parts.
        ContractMismatch: a part is missing or damaged, or a path leaves the folder.
    """
    files = []
    for one in _index(parts):
        file = folder / one.path
        if not file.resolve().is_relative_to(folder.resolve()):
            raise ContractMismatch(f"{one.path} lies outside the folder", field=INDEX)
        if not file.is_file() or file_sha256(file) != one.sha256:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, b"".join(_part(parts, part) for part in one.parts))
        if file_sha256(file) != one.sha256:
            raise ContractMismatch(f"{one.path} is not the file that was split", field=one.path)
        files.append(file)
    return files


def _index(parts: Path) -> list[PartedFile]:
    try:
        records = json.loads((parts / INDEX).read_text())
        return [
            PartedFile(one["path"], one["sha256"], tuple(Part(**part) for part in one["parts"]))
            for one in records
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(f"{parts} has no usable {INDEX}: {error}", field=INDEX) from error


def _part(parts: Path, part: Part) -> bytes:
    try:
        data = (parts / part.name).read_bytes()
    except OSError as error:
        raise ContractMismatch(f"part {part.name} is missing: {error}", field=part.name) from error
    if hashlib.sha256(data).hexdigest() != part.sha256:
        raise ContractMismatch(f"part {part.name} is damaged: copy it again", field=part.name)
    return data


def main(argv: Sequence[str]) -> int:
    """Runs one command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="deploy.gpu.parts", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    splitting = commands.add_parser("split")
    splitting.add_argument("folder", type=Path)
    splitting.add_argument("parts", type=Path)
    splitting.add_argument("--part-megabytes", type=float, default=15.0)
    joining = commands.add_parser("join")
    joining.add_argument("parts", type=Path)
    joining.add_argument("folder", type=Path)
    arguments = parser.parse_args(argv)
    try:
        if arguments.command == "split":
            done = split(arguments.folder, arguments.parts, int(arguments.part_megabytes * _MEGABYTE))
            print(f"{len(done)} files in {sum(len(one.parts) for one in done)} parts", file=sys.stderr)
        else:
            print(f"{len(join(arguments.parts, arguments.folder))} files", file=sys.stderr)
    except DliteError as error:
        print(f"parts: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
