"""Hashes by which two services know that they serve the same model."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

import torch

TOKENIZER_FILES = (
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
)
_BLOCK_BYTES = 1 << 20


def cache_dir() -> Path:
    """The user's cache folder of the project; works without HOME in the environment."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(root) / "dlite"


def tokenizer_files(folder: Path) -> dict[str, bytes]:
    """The tokenizer's files by name; empty when the folder has no tokenizer.json."""
    if not (folder / "tokenizer.json").exists():
        return {}
    present = (name for name in TOKENIZER_FILES if (folder / name).exists())
    return {name: (folder / name).read_bytes() for name in present}


def tokenizer_hash(files: dict[str, bytes]) -> str:
    """sha256 over name, 0 byte, content, 0 byte of each file sorted by name; "" without files."""
    if not files:
        return ""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(name.encode() + b"\0" + files[name] + b"\0")
    return digest.hexdigest()


def embedding_hash(embedding: torch.Tensor) -> str:
    """sha256 over the [V, D] embedding as float32 little-endian."""
    values = embedding.detach().to("cpu", torch.float32).contiguous()
    return hashlib.sha256(values.view(torch.uint8).numpy().data).hexdigest()


def model_fingerprint(folder: Path) -> str:
    """sha256 over config, tokenizer and tensor files; computed once, cached by size and mtime."""
    names = ["config.json", *TOKENIZER_FILES]
    files = [folder / name for name in names if (folder / name).exists()]
    files += sorted(folder.glob("*.safetensors"))
    stamp = [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in files]
    cache = cache_dir() / "fingerprints.json"
    known = _read_cache(cache)
    entry = known.get(str(folder.resolve()))
    if isinstance(entry, dict) and entry.get("stamp") == stamp:
        return str(entry["sha256"])
    value = _hash_files(files)
    known[str(folder.resolve())] = {"stamp": stamp, "sha256": value}
    _write_cache(cache, known)
    return value


def _hash_files(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode() + b"\0")
        with path.open("rb") as stream:
            while block := stream.read(_BLOCK_BYTES):
                digest.update(block)
    return digest.hexdigest()


def _read_cache(path: Path) -> dict[str, object]:
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}  # a cache that cannot be read is computed again
    return document if isinstance(document, dict) else {}


def _write_cache(path: Path, document: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(document, indent=1))
    temporary.replace(path)
