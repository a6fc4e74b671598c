"""From a training run to a folder that is committed: compact weights, provenance, and the card they give."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.bench.results import load
from deploy.contamination import RUN_WORDS, find
from deploy.data_check import hashes_of, texts_of
from deploy.data_sources import SourceCount, count_sources, known_sources
from deploy.learning_curve import TrainingRun, read_run
from deploy.model_cache import sha256_of
from deploy.model_card import model_card
from draft_service.checkpoint import read_draft_config
from draft_service.loader import load_drafter
from draft_service.weights import fingerprint, load_model, load_token_ids, save_compact
from protos.errors import ContractMismatch, InvalidRequest, NotFound
from protos.shard_manifest import ShardManifest
from protos.shards import open_shards

DRAFTER = "drafter"
PROVENANCE = "provenance.json"
CARD = "README.md"
MAX_BYTES = 40_000_000
_FILES = ("config.json", "model.safetensors")


@dataclass(frozen=True)
class ShipOptions:
    """Fields as in `dlite ship drafter`; `target` is a folder."""

    run: Path
    data: tuple[Path, ...]
    target: Path
    out: Path
    results: Path
    sources: tuple[Path, ...] = ()


def ship(options: ShipOptions) -> dict[str, Any]:
    """Writes the folder, beside its place first; returns its provenance.

    Raises:
        NotFound, InvalidRequest: the run, the data or a licence is not there.
        ContractMismatch: the data is not the run's, holds evaluation text, or the drafter does not fit.
    """
    run = read_run(options.run)
    _check_data(run, options.data)
    sequences = [
        s.sequence(i) for folder in options.data for s in open_shards(folder)[1] for i in range(len(s))
    ]
    sources = count_sources(sequences, known_sources(options.sources))
    contamination = _contamination(options)
    fresh = options.out.with_name(f".{options.out.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    _write_weights(options.run / DRAFTER, fresh)
    load_drafter(fresh, options.target).self_test()
    document = _provenance(run, sources, contamination, fresh)
    document["num_fast_answers"] = _num_fast(options.data)
    (fresh / PROVENANCE).write_text(json.dumps(document, indent=1) + "\n")
    write_card(fresh, options.results)
    _refuse_size(fresh)
    shutil.rmtree(options.out, ignore_errors=True)
    fresh.rename(options.out)
    return document


def _check_data(run: TrainingRun, folders: Sequence[Path]) -> None:
    """Every folder of the run, and no other, by the hashes of its shards."""
    wanted = sorted(str(one["shards_sha256"]) for one in run.provenance["data"])
    given = sorted(_shards_sha256(open_shards(folder, trust_hashes=True)[0]) for folder in folders)
    if wanted != given:
        raise ContractMismatch(
            f"run {run.name} was trained on shards {[one[:12] for one in wanted]}, "
            f"--data has {[one[:12] for one in given]}",
            field="--data",
        )


def _shards_sha256(manifest: ShardManifest) -> str:
    """As the run's provenance has it."""
    return hashlib.sha256("".join(shard.sha256 for shard in manifest.shards).encode()).hexdigest()


def _num_fast(folders: Sequence[Path]) -> int:
    """Answers whose states were captured with bfloat16 matrices."""
    manifests = [open_shards(folder, trust_hashes=True)[0] for folder in folders]
    return sum(one.num_sequences for one in manifests if one.matrices)


def _contamination(options: ShipOptions) -> dict[str, Any]:
    hashes = hashes_of(())
    hits = find(texts_of(options.data, options.target), hashes)
    if hits:
        raise ContractMismatch(
            f"the data holds {len(hits)} runs of evaluation text, the first from {hits[0].source}: "
            f"{hits[0].run!r}; see `dlite data check`",
            field="--data",
        )
    return {"run_words": RUN_WORDS, "num_hashes": len(hashes), "num_hits": len(hits)}


def _write_weights(checkpoint: Path, out: Path) -> None:
    config = read_draft_config(checkpoint)
    model = load_model(checkpoint, config)
    token_ids = None if config.draft_vocab_size is None else load_token_ids(checkpoint, config)
    save_compact(out, config, model, token_ids)
    for file in out.iterdir():
        file.chmod(0o644)


def _provenance(
    run: TrainingRun, sources: Sequence[SourceCount], contamination: Mapping[str, Any], folder: Path
) -> dict[str, Any]:
    last = run.saves[-1]
    return {
        "fingerprint": fingerprint(folder),
        "files": {
            name: {"num_bytes": (folder / name).stat().st_size, "sha256": sha256_of(folder / name)}
            for name in _FILES
        },
        "training": {
            "steps": run.steps,
            "num_anchors": run.num_anchors,
            "hours": run.seconds / 3600,
            **{name: last[name] for name in ("loss", "training", "held_out", "held_out_overlap")},
        },
        "sources": [one.as_record() for one in sources],
        "contamination": dict(contamination),
        "run": dict(run.provenance),
    }


def write_card(folder: Path, results: Path) -> str:
    """Writes the folder's README.md anew from its provenance and the results of its weights.

    Raises:
        NotFound, InvalidRequest: there is no provenance, or it is damaged.
    """
    text = model_card(read_provenance(folder), load(results) if results.is_dir() else [])
    (folder / CARD).write_text(text)
    return text


def read_provenance(folder: Path) -> dict[str, Any]:
    """Raises:
    NotFound, InvalidRequest: there is none, or it is damaged.
    """
    try:
        document = json.loads((folder / PROVENANCE).read_text())
    except OSError as error:
        raise NotFound(f"{folder} is no shipped drafter: {error}", field="--drafter") from error
    except ValueError as error:
        raise InvalidRequest(f"{folder / PROVENANCE} is damaged: {error}", field="--drafter") from error
    if not isinstance(document, dict):
        raise InvalidRequest(f"{folder / PROVENANCE} is no JSON object", field="--drafter")
    return document


def _refuse_size(folder: Path) -> None:
    size = sum(file.stat().st_size for file in folder.iterdir())
    if size > MAX_BYTES:
        raise InvalidRequest(
            f"the folder has {size:,} bytes, at most {MAX_BYTES:,} are shipped; train with a smaller rank or "
            "draft_vocab_size",
            field="--run",
        )
