"""The arms of every ablation: what each changes of the common recipe. Pure.

An arm that several ablations share (the recipe itself) has one name and is trained once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ALL = "all"
BASE_ARM = "recipe"
# The recipe of the shipped drafter in batches that give a small budget its steps.
BASE: Mapping[str, object] = {
    "num_layers": 2,
    "rank": 192,
    "block_size": 8,
    "draft_vocab_size": 8192,
    "variable_block": True,
    "block_bias": 1.0,
    "block_init": "last_layers",
    "head_init": "low_rank",
    "batch_anchors": 64,
    "group_anchors": 64,
    "learning_rate": 1e-3,
    "head_learning_rate": 2e-3,
    "warmup_fraction": 0.03,
    "decay_fraction": 0.5,
    "kl_fraction": 0.1,
    "average_decay": 0.998,
    "autocast": "bfloat16",
    "seed": 1,
}
_RANKS = (48, 96, 192, 288)
_DEPTHS = (1, 2, 3)
_NUM_TAPPED = (2, 4, 8)
_NUM_PROPOSALS = (2, 4, 7, 11)
_VOCABULARIES = (2048, 4096, 8192, 16384, 0)
_DEFAULTS: Mapping[str, object] = {"path": "teacher_free", "head": "recurrent", "net": "dlite"}
# Nets that keep a history read a text's rows once for all of its anchors in a group.
_PER_TEXT = 8
HISTORY_NETS = ("dflash", "dspark")
_NETS = {"dlite": "DLite", "dflash": "DFlash-style", "dspark": "DSpark-style"}


@dataclass(frozen=True)
class Arm:
    """One training run.

    Attributes:
        name: of its folder and in the table.
        changes: fields of the recipe.
    """

    name: str
    changes: Mapping[str, object]


@dataclass(frozen=True)
class Row:
    """A line of a table; several may stand for one arm."""

    label: str
    arm: Arm


@dataclass(frozen=True)
class Shape:
    """What the data allows: the captured layers, and the target's vocabulary."""

    layers: tuple[int, ...]
    vocab_size: int


GROUPS = (
    "R",
    "depth",
    "m",
    "K",
    "draft-vocab",
    "variable-block",
    "two-stage",
    "head",
    "one-layer",
    "baselines",
)


def rows_of(group: str, shape: Shape, base: Mapping[str, object] = BASE) -> list[Row]:
    """The rows of an ablation, in the order of the table; what the data does not allow is left out.

    Raises:
        KeyError: no such ablation.
    """
    layers = shape.layers
    tapped = [m for m in _NUM_TAPPED if m < len(layers)] + [len(layers)]
    vocabularies = [size for size in _VOCABULARIES if size <= shape.vocab_size]
    rows = {
        "R": [_row(f"R = {rank}", f"rank-{rank}", base, rank=rank) for rank in _RANKS],
        "depth": [_row(f"{n} layers", f"depth-{n}", base, num_layers=n) for n in _DEPTHS],
        "m": [_tapped(f"m = {m}", f"m-{m}", spread(layers, m), shape, base) for m in tapped],
        "K": [_row(f"K = {k}", f"k-{k}", base, block_size=k + 1) for k in _NUM_PROPOSALS],
        "draft-vocab": [
            _row(f"{size or 'all'} ids", f"vocab-{size or 'all'}", base, draft_vocab_size=size)
            for size in vocabularies
        ],
        "variable-block": [
            _row(f"variable_block {flag}", f"variable-{flag}", base, variable_block=flag)
            for flag in (True, False)
        ],
        "two-stage": [
            _row("teacher-free", "teacher-free", base, path="teacher_free"),
            _row("two stages", "two-stage", base, path="two_stage"),
        ],
        "head": [_row(f"head {kind}", f"head-{kind}", base, head=kind) for kind in ("recurrent", "none")],
        "one-layer": [
            *(
                _tapped(f"layer {one} alone", f"layer-{one}", (one,), shape, base)
                for one in spread(layers, 3)
            ),
            _tapped(f"m = {len(layers)}", "", layers, shape, base),
        ],
        "baselines": [
            Row("DLite, anchors in random order", Arm(BASE_ARM, {})),
            *(_row(label, net, base, net=net, anchors_per_text=_PER_TEXT) for net, label in _NETS.items()),
        ],
    }
    return rows[group]


def spread(layers: Sequence[int], count: int) -> tuple[int, ...]:
    """`count` of the captured layers, the first and the last among them, evenly by rank; all if fewer."""
    if count >= len(layers):
        return tuple(layers)
    last = len(layers) - 1
    return tuple(layers[round(i * last / (count - 1))] for i in range(count))


def _tapped(label: str, name: str, layers: tuple[int, ...], shape: Shape, base: Mapping[str, object]) -> Row:
    if layers == shape.layers:
        return Row(label, Arm(BASE_ARM, {}))
    return _row(label, name, base, target_layer_ids=layers)


def _row(label: str, name: str, base: Mapping[str, object], **changes: object) -> Row:
    """A row whose changes change nothing is the recipe itself."""
    common = {**_DEFAULTS, **base}
    real = {field: value for field, value in changes.items() if common.get(field) != value}
    return Row(label, Arm(name if real else BASE_ARM, real))
