"""Whether training data holds text of the evaluation sets: shared runs of 13 words.

Words are lower-case runs of letters and digits. A line that at least half of a file's prompts share (an
instruction put to every question) is no content of the file: it is left out, and no run crosses it.
The project keeps the runs of its evaluation sets as hashes of 8 bytes, so that the check runs where the
sets are not.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from protos.errors import InvalidRequest

RUN_WORDS = 13
HASHES = Path(__file__).parent / "evaluation_runs.bin"
_HASH_BYTES = 8
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class Hit:
    """A run of words that the evaluation sets hold too, and the source of the text that has it."""

    source: str
    run: str


def runs(text: str) -> Iterator[str]:
    """Every run of 13 words."""
    words = _WORD.findall(text.lower())
    for first in range(len(words) - RUN_WORDS + 1):
        yield " ".join(words[first : first + RUN_WORDS])


def hash_of(run: str) -> int:
    """8 bytes of a run's hash."""
    return int.from_bytes(hashlib.blake2b(run.encode(), digest_size=_HASH_BYTES).digest(), "little")


def set_hashes(prompts: Sequence[str]) -> set[int]:
    """Hashes of the runs of one set's prompts, without the lines that half of them share."""
    counts = Counter(line for prompt in prompts for line in set(prompt.splitlines()))
    shared = {line for line, count in counts.items() if len(prompts) > 1 and 2 * count >= len(prompts)}
    return {hash_of(run) for prompt in prompts for part in _parts(prompt, shared) for run in runs(part)}


def text_hashes(texts: Iterable[str]) -> set[int]:
    """Hashes of all runs of texts that are not a set's prompts: made-up ones, whose forms count too."""
    return {hash_of(run) for text in texts for run in runs(text)}


def _parts(prompt: str, shared: set[str]) -> Iterator[str]:
    part: list[str] = []
    for line in prompt.splitlines():
        if line in shared:
            yield "\n".join(part)
            part = []
        else:
            part.append(line)
    yield "\n".join(part)


def find(texts: Iterable[tuple[str, str]], hashes: set[int]) -> list[Hit]:
    """Runs of (source, text) pairs that are among the hashes."""
    return [Hit(source, run) for source, text in texts for run in runs(text) if hash_of(run) in hashes]


def write_hashes(file: Path, hashes: set[int]) -> None:
    """Ascending little-endian unsigned 64-bit numbers."""
    file.write_bytes(struct.pack(f"<{len(hashes)}Q", *sorted(hashes)))


def read_hashes(file: Path) -> set[int]:
    """What `write_hashes` wrote.

    Raises:
        InvalidRequest: no such file, or not of that form.
    """
    try:
        data = file.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"cannot read {file}: {error}", field="--against") from error
    if not data or len(data) % _HASH_BYTES:
        raise InvalidRequest(f"{file} is no file of hashes", field="--against")
    return set(struct.unpack(f"<{len(data) // _HASH_BYTES}Q", data))
