"""`dlite data check`: the texts of shards against evaluation sets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from coordinator.tokenizer import FileTokenizer
from deploy.agent_held_out import held_out_texts
from deploy.contamination import HASHES, Hit, find, read_hashes, set_hashes, text_hashes
from deploy.questions import read_prompts
from protos.shards import open_shards


def hashes_of(against: Sequence[Path]) -> set[int]:
    """Of prompt files (every turn counts) and `.bin` files of hashes; without any, the project's own: the
    evaluation sets and the agent prompts that are made up for measuring.

    Raises:
        NotFound, InvalidRequest: a file cannot be used.
    """
    hashes: set[int] = set() if against else text_hashes(held_out_texts())
    for file in against or (HASHES,):
        if file.suffix == ".bin":
            hashes |= read_hashes(file)
        else:
            hashes |= set_hashes(whole_prompts(file))
    return hashes


def whole_prompts(file: Path) -> list[str]:
    """All turns of each prompt of a file, as one text each.

    Raises:
        NotFound, InvalidRequest: as `read_prompts`.
    """
    first = [text.messages[0][1] for text in read_prompts(file) if text.messages]
    if file.suffix != ".jsonl":
        return first
    records = [json.loads(line) for line in file.read_text().split("\n") if line.strip()]
    return ["\n\n".join(record.get("turns") or [record["prompt"]]) for record in records]


def check(folders: Sequence[Path], target: Path, against: Sequence[Path]) -> list[Hit]:
    """Runs of 13 words that prompts or responses of the shards share with the evaluation sets.

    Raises:
        NotFound, InvalidRequest, ContractMismatch: a folder or file cannot be used.
    """
    return find(texts_of(folders, target), hashes_of(against))


def texts_of(folders: Sequence[Path], target: Path) -> Iterator[tuple[str, str]]:
    """Source and text, prompt and response, of every sequence of the shards."""
    tokenizer = FileTokenizer(target)
    for folder in folders:
        _, shards = open_shards(folder)
        for shard in shards:
            for index in range(len(shard)):
                sequence = shard.sequence(index)
                yield sequence.source, tokenizer.decode(sequence.token_ids.tolist())
