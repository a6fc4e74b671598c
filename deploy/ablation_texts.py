"""The texts that ablations walk: held-out greedy answers with the target's states, read from shards.

No target is run for them, but where whole histories are wanted that the shards do not hold: then the
texts go through the export once more, with every row of their prompts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.data import shown
from draft_service.training.rows import is_held_out
from protos.errors import InvalidRequest
from protos.shard_manifest import MANIFEST, read_manifest, write_atomically
from protos.shards import CapturedSequence, open_shards
from target_service.export_job import ExportOptions, export_file

_EVERY_ROW = 1 << 20


@dataclass(frozen=True, eq=False)
class TextSet:
    """Texts of one kind.

    Attributes:
        name: "held-out", or the texts' source.
        context: the median number of tokens before the response.
        history: the share of the positions before the responses whose rows are there.
    """

    name: str
    sequences: tuple[CapturedSequence, ...]
    context: int
    history: float


def held_out_texts(folders: Sequence[Path], fraction: float) -> TextSet:
    """The greedy answers to the prompts that are never trained on.

    Raises:
        InvalidRequest: there are none.
    """
    chosen = [one for one in _greedy(folders) if is_held_out(one.token_ids[: one.prompt_length], fraction)]
    return text_set("held-out", chosen)


def context_texts(folder: Path, count: int) -> list[TextSet]:
    """The first greedy answers of each source (of traces: each context) in a folder not trained on."""
    by_source: dict[str, list[CapturedSequence]] = {}
    for one in _greedy([folder]):
        by_source.setdefault(one.source, []).append(one)
    return [text_set(source, found[:count]) for source, found in by_source.items()]


def text_set(name: str, chosen: Sequence[CapturedSequence]) -> TextSet:
    """Raises:
    InvalidRequest: there is no text.
    """
    if not chosen:
        raise InvalidRequest(f"no greedy answer to walk among the {name} texts", field="--data")
    prompts = sorted(one.prompt_length for one in chosen)
    return TextSet(name, tuple(chosen), prompts[len(prompts) // 2], history_share(chosen))


def history_share(sequences: Iterable[CapturedSequence]) -> float:
    """Rows that are there, of those that a history-keeping drafter could have."""
    there, could_be = 0, 0
    for one in sequences:
        there += len(one.features)
        could_be += len(one.features) + one.first_position
    return there / could_be


def _greedy(folders: Sequence[Path]) -> Iterable[CapturedSequence]:
    for folder in folders:
        _, shards = open_shards(folder, trust_hashes=True)
        for shard in shards:
            for index in range(len(shard)):
                sequence = shard.sequence(index)
                # A text needs an anchor and two tokens after it to be drafted for.
                if sequence.temperature == 0.0 and sequence.num_response_tokens > 2:
                    yield sequence


def whole_history(folder: Path, target: Path, out: Path, only: Sequence[CapturedSequence] = ()) -> Path:
    """A folder with the same texts and every row of their prompts; the folder itself if it has them.

    Args:
        only: these texts of the folder; empty means all.
    """
    manifest, shards = open_shards(folder, trust_hashes=True)
    texts = only or [shard.sequence(index) for shard in shards for index in range(len(shard))]
    if history_share(texts) == 1.0:
        return folder
    out.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(_as_line(one)) + "\n" for one in texts).encode()
    name = f"{folder.name}-{hashlib.sha256(lines).hexdigest()[:12]}"
    whole, file = out / name, out / f"{name}.jsonl"
    if (whole / MANIFEST).exists() and read_manifest(whole).complete:
        return whole
    write_atomically(file, lines)
    options = ExportOptions(
        target=str(target),
        num_tapped_layers=len(manifest.tapped_layers),
        history=_EVERY_ROW,
        feature_dtype=manifest.dtype,
    )
    export_file(file, whole, options, shown)
    return whole


def _as_line(sequence: CapturedSequence) -> dict[str, object]:
    return {
        "source": sequence.source,
        "temperature": sequence.temperature,
        "prompt_len": sequence.prompt_length,
        "ids": sequence.token_ids.tolist(),
    }
