"""Offline export: token sequences through the served model, its states into shards.

The rows go through `TargetModel.forward`, our packing and our pages, exactly as a request's prefill
does, so features that a drafter is trained on are those that it is served.

A sequence has n tokens, P of them the prompt; rows f .. n - 2 are kept (see protos/shards.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from protos.errors import InvalidRequest, NotFound
from protos.shards import CapturedSequence
from target_service.engine import StepOutput
from target_service.model import TargetModel
from target_service.packing import Extension, pack


@dataclass(frozen=True)
class TokenSequence:
    """A prompt with the target's response, as ids."""

    token_ids: tuple[int, ...]
    prompt_length: int
    temperature: float
    source: str


@dataclass(frozen=True)
class ExportLimits:
    """Rows of one forward pass, and prompt rows kept before the first pivot."""

    step_rows: int = 512
    history: int = 0


def read_sequences(file: Path, vocab_size: int, max_context: int) -> list[TokenSequence]:
    """Reads JSONL lines `{"prompt_len": P, "ids": [..], "temperature": .., "source": ".."}`.

    Raises:
        NotFound: no such file.
        InvalidRequest: a line is no sequence with a prompt and a response of the target's ids.
    """
    try:
        lines = file.read_text().split("\n")
    except OSError as error:
        raise NotFound(f"cannot read {file}: {error}", field="sequences") from error
    found = [_sequence(line, f"{file}:{i}", vocab_size) for i, line in enumerate(lines, 1) if line.strip()]
    longest = max((len(one.token_ids) for one in found), default=0)
    if longest > max_context:
        raise InvalidRequest(f"{file} has a text of {longest} tokens, the target takes {max_context}")
    if not found:
        raise InvalidRequest(f"{file} has no sequences", field="sequences")
    return found


def _sequence(line: str, where: str, vocab_size: int) -> TokenSequence:
    try:
        record = json.loads(line)
        ids, prompt_length = record["ids"], record["prompt_len"]
        sequence = TokenSequence(
            tuple(ids), prompt_length, float(record.get("temperature", 0.0)), str(record.get("source", ""))
        )
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(f"{where}: expected an object with ids and prompt_len ({error})") from error
    if not all(type(token) is int and 0 <= token < vocab_size for token in ids):
        raise InvalidRequest(f"{where}: ids must be integers in [0, {vocab_size})", field="ids")
    if type(prompt_length) is not int or not 1 <= prompt_length < len(ids):
        raise InvalidRequest(f"{where}: {prompt_length!r} is no prompt length of {len(ids)} ids")
    return sequence


def source_sha256(file: Path) -> str:
    """Hex sha256 of the file of sequences."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@dataclass(eq=False)
class _Rows:
    """What has been computed of one sequence."""

    sequence: TokenSequence
    first_position: int
    features: list[torch.Tensor]
    greedy: list[torch.Tensor]
    normalisers: list[torch.Tensor]

    def take(self, output: StepOutput, rows: slice) -> None:
        logits = output.logits[rows]
        self.features.append(output.features[rows])
        self.greedy.append(logits.argmax(dim=-1).to(torch.int32))
        self.normalisers.append(torch.logsumexp(logits.to(torch.float32), dim=-1))

    def captured(self) -> CapturedSequence:
        one = self.sequence
        return CapturedSequence(
            token_ids=torch.tensor(one.token_ids, dtype=torch.int32),
            prompt_length=one.prompt_length,
            temperature=one.temperature,
            source=one.source,
            first_position=self.first_position,
            features=torch.cat(self.features).cpu(),
            greedy_tokens=torch.cat(self.greedy).cpu(),
            log_normalisers=torch.cat(self.normalisers).cpu(),
        )


def capture(
    model: TargetModel, sequences: Iterable[TokenSequence], limits: ExportLimits
) -> Iterator[CapturedSequence]:
    """The sequences with the model's states, in order.

    Args:
        model: with pages for the longest sequence, at least for `step_rows` tokens.
        limits: how many rows a step has; longer sequences take several.
    """
    for group in _groups(sequences, limits.step_rows):
        yield from (rows.captured() for rows in _run(model, group, limits))


def _groups(sequences: Iterable[TokenSequence], step_rows: int) -> Iterator[list[TokenSequence]]:
    """Consecutive sequences that fit one step together; a longer one stands alone."""
    group: list[TokenSequence] = []
    for sequence in sequences:
        if group and sum(len(one.token_ids) for one in (*group, sequence)) > step_rows:
            yield group
            group = []
        group.append(sequence)
    if group:
        yield group


@torch.inference_mode()
def _run(model: TargetModel, group: Sequence[TokenSequence], limits: ExportLimits) -> list[_Rows]:
    states = [_Rows(one, max(one.prompt_length - 1 - limits.history, 0), [], [], []) for one in group]
    page_size = model.kv.page_size
    first_page, pages = 0, []
    for one in group:
        count = -(-len(one.token_ids) // page_size)
        pages.append(tuple(range(first_page, first_page + count)))
        first_page += count
    done = 0
    # The last token has no successor in the text: nothing is learned from its row.
    while done < max(len(one.token_ids) - 1 for one in group):
        extensions = [_extension(state, pages[i], done, limits.step_rows) for i, state in enumerate(states)]
        output = model.forward(pack(extensions, page_size, model.device))
        first = 0
        for state, extension in zip(states, extensions, strict=True):
            if extension.num_decisions:
                state.take(output, slice(first, first + extension.num_decisions))
            first += extension.num_decisions
        done += limits.step_rows
    return states


def _extension(state: _Rows, pages: tuple[int, ...], start: int, step_rows: int) -> Extension:
    ids = state.sequence.token_ids
    end = min(start + step_rows, len(ids) - 1)
    return Extension(ids[start:end], start, pages, max(end - max(start, state.first_position), 0))
