"""One evaluation: the target answers sets of prompts, the drafter walks the answers.

The texts come from the engine with their features in float32, so a walk meets what a request meets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.data import shown
from deploy.questions import Asking, PromptText, agent_texts, as_questions, read_prompts
from draft_service.checkpoint import DraftCheckpointConfig, read_draft_config
from draft_service.loader import load_drafter
from draft_service.training.scores import Score, score
from draft_service.training.walk import Walk, WalkOptions, walk_all
from protos.errors import ContractMismatch, InvalidRequest
from protos.shards import open_shards
from target_service.answering_job import AnsweringOptions, answer_all

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class EvaluationOptions:
    """Fields as in `dlite eval`."""

    drafter: Path
    target: Path
    prompts: tuple[Path, ...]
    num_agent_prompts: int
    num_prompts: int
    max_tokens: int
    temperatures: tuple[float, ...]
    num_draft_tokens: int
    seed: int
    threads: int


def report(options: EvaluationOptions, work: Path) -> dict[str, Any]:
    """Scores of every set at every temperature, as JSON.

    Raises:
        InvalidRequest: no prompts, or more proposals than the drafter makes.
        ContractMismatch: drafter and target do not belong together.
    """
    config = read_draft_config(options.drafter)
    most = options.num_draft_tokens or config.num_proposals
    if most > config.num_proposals:
        raise InvalidRequest(f"{most} proposals, the drafter makes {config.num_proposals}", field="k")
    drafter = load_drafter(options.drafter, options.target)
    sets = prompt_sets(options)
    scores: list[Score] = []
    for temperature in options.temperatures:
        everything: list[Walk] = []
        for name, texts in sets.items():
            folder = work / f"{name.replace(':', '-')}-t{temperature:g}-n{options.max_tokens}"
            _answer(texts, folder, temperature, options, config)
            manifest, shards = open_shards(folder)
            layers = _layers(config, manifest.tapped_layers)
            walk = WalkOptions(most, options.max_tokens, layers, config.anchor_group_size)
            sequences = [shard.sequence(i) for shard in shards for i in range(len(shard))]
            walks = list(walk_all(drafter, sequences, walk))
            scores.append(score(name, temperature, walks, most))
            everything += walks
        scores.append(score("all", temperature, everything, most))
    return {
        "drafter": options.drafter.name,
        "fingerprint": drafter.description.fingerprint,
        "num_draft_tokens": most,
        "max_tokens": options.max_tokens,
        "seed": options.seed,
        "scores": [one.as_record() for one in scores],
    }


def prompt_sets(options: EvaluationOptions) -> dict[str, list[PromptText]]:
    """Prompts by the name of their file, made-up ones by their kind.

    Raises:
        NotFound, InvalidRequest: a file cannot be used, or there is no prompt at all.
    """
    sets = {file.stem: list(read_prompts(file))[: options.num_prompts] for file in options.prompts}
    for text in agent_texts(options.num_agent_prompts, options.seed):
        sets.setdefault(text.source, []).append(text)
    if not sets:
        raise InvalidRequest("give --prompts or --agent", field="--prompts")
    return sets


def _answer(
    texts: Sequence[PromptText],
    folder: Path,
    temperature: float,
    options: EvaluationOptions,
    config: DraftCheckpointConfig,
) -> None:
    asking = Asking((temperature,), options.max_tokens, seed=options.seed)
    asked = as_questions(options.target, texts, asking)
    answering = AnsweringOptions(
        target=str(options.target),
        num_tapped_layers=len(config.target_layer_ids),
        feature_dtype="float32",
        threads=options.threads,
    )
    answer_all(asked, folder, answering, shown)


def _layers(config: DraftCheckpointConfig, tapped: Sequence[int]) -> tuple[int, ...]:
    missing = sorted(set(config.target_layer_ids) - set(tapped))
    if missing:
        raise ContractMismatch(
            f"the drafter reads layer {missing[0]}, the texts were made with {list(tapped)}",
            field="target_layer_ids",
        )
    return tuple(list(tapped).index(layer) for layer in config.target_layer_ids)


def as_table(found: dict[str, Any]) -> Table:
    """The scores as a table: tau, then conditional acceptance of each proposal."""
    from rich.table import Table

    table = Table(title=f"{found['drafter']}, {found['num_draft_tokens']} proposals a round")
    for heading in ("set", "T", "texts", "rounds", "tau"):
        table.add_column(heading, justify="left" if heading == "set" else "right")
    for j in range(1, found["num_draft_tokens"] + 1):
        table.add_column(f"a{j}", justify="right")
    for one in found["scores"]:
        cells = [one["name"], f"{one['temperature']:g}", str(one["num_texts"]), str(one["num_rounds"])]
        table.add_row(*cells, *(_cell(value) for value in (one["tau"], *one["conditional"])))
    return table


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def draw(found: dict[str, Any], file: Path) -> None:
    """A matrix of conditional acceptance: one row for each set and temperature, one column a proposal."""
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    scores = found["scores"]
    values = np.array([[np.nan if v is None else v for v in one["conditional"]] for one in scores])
    figure = Figure(figsize=(2 + 0.8 * values.shape[1], 1.2 + 0.4 * len(scores)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    image = axes.imshow(values, vmin=0.0, vmax=1.0, cmap="viridis", aspect="auto")
    axes.set_xticks(range(values.shape[1]), [f"a{j}" for j in range(1, values.shape[1] + 1)])
    labels = [f"{one['name']}  T={one['temperature']:g}  tau {_cell(one['tau'])}" for one in scores]
    axes.set_yticks(range(len(scores)), labels)
    for row, column in np.ndindex(*values.shape):
        if not np.isnan(values[row, column]):
            text = f"{values[row, column]:.2f}"
            axes.text(column, row, text, ha="center", va="center", color="white", fontsize=8)
    axes.set_title(f"conditional acceptance, {found['drafter']}")
    figure.colorbar(image)
    figure.savefig(file, dpi=120)
