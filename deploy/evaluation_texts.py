"""The texts that drafters are measured on: sets of prompts, and the target's answers to them.

Answers are kept: another drafter with the same tapped layers is measured on the same texts without the
target. A folder is named by all that decides its texts, so it is never mistaken for another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.contamination import HASHES, read_hashes, set_hashes
from deploy.data import shown
from deploy.data_check import whole_prompts
from deploy.questions import (
    Asking,
    PromptText,
    as_questions,
    held_out_agent_texts,
    read_prompts,
    trace_texts,
)
from deploy.trace_words import HELD_OUT
from protos.errors import InvalidRequest
from protos.shard_manifest import ShardManifest
from protos.shards import CapturedSequence, open_shards
from target_service.answering import Question
from target_service.answering_job import AnsweringOptions, answer_all, questions_sha256
from target_service.fingerprint import model_fingerprint

_LONGEST_PROMPT = 4096
_AT_A_TIME = 32


@dataclass(frozen=True)
class TextOptions:
    """What is asked.

    Attributes:
        target: model folder.
        prompts: files; the first `num_prompts` of each.
        num_agent_prompts: held-out prompts of agent work, kinds in turn.
        num_traces: held-out agent traces of each of the `contexts` (tokens).
        max_tokens: of each answer.
        temperatures: every prompt is answered at each.
    """

    target: Path
    prompts: tuple[Path, ...] = ()
    num_prompts: int = 20
    num_agent_prompts: int = 0
    num_traces: int = 0
    contexts: tuple[int, ...] = ()
    max_tokens: int = 128
    temperatures: tuple[float, ...] = (0.0,)
    seed: int = 0


@dataclass(frozen=True)
class TextSet:
    """Prompts that are scored together; `context` is the wanted length of traces."""

    name: str
    texts: tuple[PromptText, ...]
    context: int | None = None


def text_sets(options: TextOptions) -> list[TextSet]:
    """Prompts by the name of their file, held-out ones by their kind, traces by their context.

    Raises:
        NotFound, InvalidRequest: a file cannot be used, two have one name, or there is no prompt at all.
    """
    names = [file.stem for file in options.prompts]
    if len(set(names)) < len(names):
        raise InvalidRequest(f"two files of one name among {names}", field="--prompts")
    sets = [TextSet(f.stem, tuple(read_prompts(f))[: options.num_prompts]) for f in options.prompts]
    kinds: dict[str, list[PromptText]] = {}
    for text in held_out_agent_texts(options.num_agent_prompts, options.seed):
        kinds.setdefault(text.source, []).append(text)
    sets += [TextSet(name, tuple(texts)) for name, texts in kinds.items()]
    for context in options.contexts if options.num_traces else ():
        traces = trace_texts(options.target, options.num_traces, options.seed, HELD_OUT, context)
        sets.append(TextSet(f"trace:{context}", tuple(traces), context))
    if not any(one.texts for one in sets):
        raise InvalidRequest("give --prompts, --agent or --traces", field="--prompts")
    return sets


def uncovered_files(files: Sequence[Path]) -> list[str]:
    """Files with runs of words that the project's list of evaluation runs lacks: `dlite data check` did not
    look for them."""
    known = read_hashes(HASHES)
    return [file.name for file in files if not set_hashes(whole_prompts(file)) <= known]


@dataclass(frozen=True)
class AnswerOptions:
    """How answers are made and where they are kept.

    Attributes:
        work: folder of folders of shards.
        num_tapped_layers: m of the drafter.
    """

    work: Path
    num_tapped_layers: int
    threads: int = 1


def answered(
    sets: Sequence[TextSet], options: TextOptions, answers: AnswerOptions
) -> tuple[ShardManifest, list[CapturedSequence]]:
    """Every text with the target's states; a sequence's source is the name of its set.

    Traces are answered one at a time, so that those of one history find its pages in the prefix cache.

    Raises:
        InvalidRequest, NotFound, ContractMismatch: the target cannot be used, or it refuses a prompt.
    """
    short = [one for one in sets if one.context is None]
    long = [one for one in sets if one.context is not None]
    found: list[CapturedSequence] = []
    manifest: ShardManifest | None = None
    for part, concurrency in ((short, _AT_A_TIME), (long, 1)):
        asked = _questions(part, options)
        if asked:
            manifest, sequences = _answer(asked, options, answers, concurrency)
            found += sequences
    if manifest is None:
        raise InvalidRequest(f"every prompt is longer than {_LONGEST_PROMPT} tokens", field="--prompts")
    return manifest, found


def _questions(sets: Sequence[TextSet], options: TextOptions) -> list[Question]:
    """Temperatures of one text in a row; sources are the sets' names."""
    longest = max([_LONGEST_PROMPT, *options.contexts])
    texts = [PromptText(text.messages, one.name, text.token_ids) for one in sets for text in one.texts]
    by_temperature = []
    for temperature in options.temperatures:
        asking = Asking((temperature,), options.max_tokens, max_prompt=longest, seed=options.seed)
        by_temperature.append(as_questions(options.target, texts, asking))
    return [question for same in zip(*by_temperature, strict=True) for question in same]


def _answer(
    asked: list[Question], options: TextOptions, answers: AnswerOptions, concurrency: int
) -> tuple[ShardManifest, list[CapturedSequence]]:
    names = (
        model_fingerprint(options.target)[:8],
        f"m{answers.num_tapped_layers}",
        questions_sha256(asked)[:12],
    )
    folder = answers.work / "-".join(names)
    answering = AnsweringOptions(
        target=str(options.target),
        num_tapped_layers=answers.num_tapped_layers,
        feature_dtype="float32",
        concurrency=concurrency,
        threads=answers.threads,
    )
    if not _is_complete(folder):
        answer_all(asked, folder, answering, shown)
    manifest, shards = open_shards(folder)
    return manifest, [shard.sequence(index) for shard in shards for index in range(len(shard))]


def _is_complete(folder: Path) -> bool:
    """Whether nothing is left to answer, so that the target need not be loaded."""
    if not (folder / "manifest.json").is_file():
        return False
    return open_shards(folder, trust_hashes=True)[0].complete
