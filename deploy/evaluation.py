"""One evaluation: the target answers sets of prompts, the drafter walks the answers.

The texts come from the engine with their features in float32, so a walk meets what a request meets.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.contamination import find, set_hashes, text_hashes
from deploy.data_check import texts_of, whole_prompts
from deploy.evaluation_texts import AnswerOptions, TextOptions, TextSet, answered, text_sets
from draft_service.checkpoint import DraftCheckpointConfig, read_draft_config
from draft_service.loader import load_drafter
from draft_service.training.scores import score
from draft_service.training.walk import Walk, WalkOptions, walk_all
from protos.errors import ContractMismatch, InvalidRequest

ALL = "all"


@dataclass(frozen=True)
class EvaluationOptions:
    """Of which drafter, on which texts.

    Attributes:
        num_draft_tokens: proposals a round; 0: all that the drafter makes.
        work: where answers are kept.
        training_data: folders of shards that must hold none of the prompts.
    """

    drafter: Path
    texts: TextOptions
    work: Path
    num_draft_tokens: int = 0
    threads: int = 1
    training_data: tuple[Path, ...] = ()


def report(options: EvaluationOptions) -> dict[str, Any]:
    """Scores of every set at every temperature, as JSON.

    Raises:
        InvalidRequest: no prompts, or more proposals than the drafter makes.
        ContractMismatch: drafter and target do not belong together, or training data holds the prompts.
    """
    config = read_draft_config(options.drafter)
    most = options.num_draft_tokens or config.num_proposals
    if most > config.num_proposals:
        raise InvalidRequest(f"{most} proposals, the drafter makes {config.num_proposals}", field="k")
    sets = text_sets(options.texts)
    num_runs = _refuse_training_text(sets, options)
    answers = AnswerOptions(options.work, len(config.target_layer_ids), options.threads)
    manifest, sequences = answered(sets, options.texts, answers)
    drafter = load_drafter(options.drafter, options.texts.target, matrices="auto")
    layers = _layers(config, manifest.tapped_layers)
    walk = WalkOptions(most, options.texts.max_tokens, layers, config.anchor_group_size)
    walks = list(walk_all(drafter, sequences, walk))
    return {
        "drafter": options.drafter.name,
        "fingerprint": drafter.description.fingerprint,
        "num_draft_tokens": most,
        "max_tokens": options.texts.max_tokens,
        "seed": options.texts.seed,
        "runs_of_13_words_not_in_training_data": num_runs,
        "scores": scores_of(sets, walks, options.texts.temperatures, most),
    }


def _refuse_training_text(sets: Sequence[TextSet], options: EvaluationOptions) -> int | None:
    """Runs that were looked for; None without training data to look in."""
    if not options.training_data:
        return None
    hashes = {h for file in options.texts.prompts for h in set_hashes(whole_prompts(file))}
    for one in sets:
        if ":" in one.name:
            hashes |= text_hashes("\n".join(part for _, part in text.messages) for text in one.texts)
    hits = find(texts_of(options.training_data, options.texts.target), hashes)
    if hits:
        raise ContractMismatch(
            f"training data ({hits[0].source}) holds a run of the prompts: {hits[0].run!r}",
            field="--training-data",
        )
    return len(hashes)


def scores_of(
    sets: Sequence[TextSet], walks: Sequence[Walk], temperatures: Sequence[float], most: int
) -> list[dict[str, Any]]:
    """Scores by set and temperature, then over the sets of files; prompt lengths are those of the target's
    tokens."""
    rows = []
    for temperature in temperatures:
        same = [walk for walk in walks if abs(walk.sequence.temperature - temperature) < 1e-6]
        for one in sets:
            mine = [walk for walk in same if walk.sequence.source == one.name]
            rows.append(_row(one.name, one.context, temperature, mine, most))
        files = {one.name for one in sets if ":" not in one.name}
        if len(files) > 1:
            every = [walk for walk in same if walk.sequence.source in files]
            rows.append(_row(ALL, None, temperature, every, most))
    return rows


def _row(
    name: str, context: int | None, temperature: float, walks: Sequence[Walk], most: int
) -> dict[str, Any]:
    lengths = [walk.sequence.prompt_length for walk in walks]
    record = score(name, temperature, walks, most).as_record()
    return {**record, "context": context, "prompt_tokens": statistics.median(lengths) if lengths else None}


def _layers(config: DraftCheckpointConfig, tapped: Sequence[int]) -> tuple[int, ...]:
    missing = sorted(set(config.target_layer_ids) - set(tapped))
    if missing:
        raise ContractMismatch(
            f"the drafter reads layer {missing[0]}, the texts were made with {list(tapped)}",
            field="target_layer_ids",
        )
    return tuple(list(tapped).index(layer) for layer in config.target_layer_ids)
