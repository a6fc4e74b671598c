"""Trains the arms of ablations to one budget, walks each, and keeps what was found beside its run.

OUT/a<anchors>/<arm>/             the arm's run (training/loop.py)
OUT/a<anchors>/<arm>/result.json  what it came to; an arm that has one is not done again
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deploy.ablation_arms import Arm
from deploy.ablation_errors import Counts, tau_error
from deploy.ablation_texts import TextSet
from draft_service.training.data import TrainingData
from draft_service.training.draft_cost import DraftCost, drafter_cost, history_cost, weight_bytes
from draft_service.training.history_walk import HistoryWalker
from draft_service.training.loop import RunOptions, Trained, Watch
from draft_service.training.provenance import provenance
from draft_service.training.recipe import Recipe
from draft_service.training.run import train_on
from draft_service.training.scores import score
from draft_service.training.state import digest_of
from draft_service.training.walk import Walk, WalkOptions
from draft_service.training.walkable import ServedWalker, walker_of
from protos.errors import ContractMismatch
from protos.shard_manifest import write_atomically
from protos.shards import CapturedSequence

RESULT = "result.json"
CONTEXTS = (512, 2048, 6144)
# A few block sizes that serving would choose, beside the arm's own K.
_PROPOSALS = (2, 4)
_COST_REPEATS = 30
# Only to watch a run by; arms are compared by walking.
_EVALUATION_ANCHORS = 512


@dataclass(frozen=True, eq=False)
class Bench:
    """What all arms of a call share.

    Attributes:
        data: open, with all captured layers.
        held_out: walked with every arm.
        contexts: walked with the baselines and what stands beside them.
        anchors: the budget of each arm.
        costs_again: measures the cost of drafting anew, also of arms that are done.
    """

    data: TrainingData
    target: Path
    held_out: TextSet
    contexts: Sequence[TextSet]
    base: Mapping[str, object]
    anchors: int
    out: Path
    threads: int
    costs_again: bool = False


def recipe_of(arm: Arm, bench: Bench) -> Recipe:
    """The arm's recipe, with the steps that use up the budget."""
    values = {**bench.base, **arm.changes}
    batch = int(str(values["batch_anchors"]))
    return Recipe.model_validate({**values, "steps": max(bench.anchors // batch, 2)})


def run_arm(arm: Arm, bench: Bench, texts: Sequence[TextSet], watch: Watch) -> dict[str, Any]:
    """Trains an arm and walks these texts; what was found before is read.

    Raises:
        ContractMismatch: the folder holds an arm of another recipe, data or texts.
    """
    recipe = recipe_of(arm, bench)
    data = bench.data.with_layers(recipe.target_layer_ids)
    made_of = provenance(recipe, data, "")
    folder = bench.out / f"a{bench.anchors}" / arm.name
    record = _kept(folder / RESULT, made_of, texts)
    missing = [one for one in texts if record is None or one.name not in record["texts"]]
    if record is not None and not missing and not bench.costs_again:
        return record
    save_every = max(recipe.steps // 4, 50)
    options = RunOptions(
        (),
        bench.target,
        folder,
        save_every=save_every,
        evaluation_anchors=_EVALUATION_ANCHORS,
        threads=bench.threads,
    )
    begun = time.monotonic()
    trained = train_on(data, recipe, options, watch)
    seconds = time.monotonic() - begun
    if record is None:
        record = {
            "arm": arm.name,
            "changes": dict(arm.changes),
            "provenance": made_of,
            "digest": digest_of(made_of),
            "anchors": recipe.steps * recipe.batch_anchors,
            "seconds": seconds if trained.new_steps == recipe.steps else None,
            "weight_bytes": weight_bytes(trained.model),
            "texts": {},
            "sets": [],
        }
    record = _walked(record, trained, data, missing)
    record["cost"] = [asdict(one) for one in costs(trained)]
    write_atomically(folder / RESULT, (json.dumps(record, indent=1) + "\n").encode())
    return record


def _kept(file: Path, made_of: dict[str, Any], texts: Sequence[TextSet]) -> dict[str, Any] | None:
    if not file.exists():
        return None
    found: dict[str, Any] = json.loads(file.read_text())
    same = all(found["texts"].get(one.name) in (None, _texts_digest(one)) for one in texts)
    if found["digest"] != digest_of(made_of) or not same:
        raise ContractMismatch(
            f"{file} is of another recipe, other data or other texts: use another --out", field="--out"
        )
    return found


def _walked(
    record: dict[str, Any], trained: Trained, data: TrainingData, texts: Sequence[TextSet]
) -> dict[str, Any]:
    """The record with the scores of more texts."""
    walker = walker_of(trained)
    most = trained.prepared.config.num_proposals
    captured = list(data.manifests[0].tapped_layers)
    layers = tuple(captured.index(layer) for layer in data.layer_ids)
    sets = list(record["sets"])
    for one in texts:
        by_k = {}
        for k in sorted({most, *(k for k in _PROPOSALS if k < most)}):
            walks = list(walker.walk_all(one.sequences, WalkOptions(k, layers=layers)))
            by_k[str(k)] = score(one.name, 0.0, walks, k).as_record()
        counts = counts_of(walks, one.sequences)  # of the most proposals: the last k
        sets.append(
            {
                **by_k[str(most)],
                "tau_by_k": {k: found["tau"] for k, found in by_k.items()},
                "tau_error": tau_error(counts),
                "counts": [[text.tokens, text.rounds] for text in counts],
                "context": one.context,
                "history": one.history,
            }
        )
    digests = {one.name: _texts_digest(one) for one in texts}
    return {**record, "texts": {**record["texts"], **digests}, "sets": sets}


def counts_of(walks: Sequence[Walk], sequences: Sequence[CapturedSequence]) -> list[Counts]:
    """What was counted in each text, in the order of the texts; a text without a round has none."""
    found = {id(walk.sequence): Counts(walk.num_tokens, len(walk.rounds)) for walk in walks}
    return [found[id(sequence)] for sequence in sequences]


def costs(trained: Trained) -> list[DraftCost]:
    """Of a round at each context. The machine's other work is in them: the least time says most."""
    walker = walker_of(trained)
    found = []
    for context in CONTEXTS:
        if isinstance(walker, HistoryWalker):
            found.append(history_cost(walker, context, _COST_REPEATS, time.perf_counter))
        elif isinstance(walker, ServedWalker):
            found.append(
                drafter_cost(walker.drafter, walker.model, context, _COST_REPEATS, time.perf_counter)
            )
    return found


def _texts_digest(texts: TextSet) -> str:
    return digest_of([[one.token_ids.tolist(), one.first_position] for one in texts.sequences])
