"""What one round of drafting costs, by context: time of a proposal block, bytes kept between rounds.

One request, made-up numbers in place of features: neither depends on them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from draft_service.drafter import Drafter
from draft_service.model import DraftModel
from draft_service.proposal import DraftItem, DraftMode
from draft_service.training.history_net import Cache
from draft_service.training.history_walk import HistoryWalker

# Rows that a round adds to a history: what a round commits, about.
NEW_ROWS = 2
_WARM_UP = 3


@dataclass(frozen=True)
class DraftCost:
    """Of a round with the full block.

    Attributes:
        context: tokens before the anchor.
        milliseconds, least_milliseconds: of a round, median and least.
        state_bytes: kept for one request between rounds.
    """

    context: int
    milliseconds: float
    least_milliseconds: float
    state_bytes: int


def weight_bytes(model: nn.Module) -> int:
    """Bytes of a net's own float32 weights; embedding and LM head are the target's."""
    return sum(value.numel() * value.element_size() for value in model.parameters())


def drafter_cost(
    drafter: Drafter, model: DraftModel, context: int, repeats: int, now: Callable[[], float]
) -> DraftCost:
    """A DLite drafter: it keeps the pivot's features and nothing else, whatever the context."""
    config = model.config
    features = torch.randn(
        len(config.target_layer_ids), config.hidden_size, generator=torch.Generator().manual_seed(0)
    )
    item = DraftItem("cost", (1,), features, context, config.num_proposals, DraftMode.GREEDY)
    times = _times(lambda: drafter.propose([item]), repeats, now)
    return DraftCost(context, *times, features.numel() * features.element_size())


def history_cost(walker: HistoryWalker, context: int, repeats: int, now: Callable[[], float]) -> DraftCost:
    """A history-keeping net: the new rows go into its cache, then the block reads all of it."""
    config = walker.net.config
    generator = torch.Generator().manual_seed(0)
    shape = (1, config.num_kv_heads, context, config.head_dim)
    caches = [
        Cache(torch.randn(shape, generator=generator), torch.randn(shape, generator=generator))
        for _ in range(config.num_layers)
    ]
    new = torch.randn(1, NEW_ROWS, len(config.target_layer_ids), config.hidden_size, generator=generator)
    positions = torch.arange(context - NEW_ROWS, context)[None]
    visible = torch.ones(1, context, dtype=torch.bool)
    tokens, anchors = torch.tensor([1]), torch.tensor([context])

    def round_() -> None:
        with torch.inference_mode():
            for kept, grown in zip(caches, walker.net.caches(new, positions), strict=True):
                kept.keys[:, :, -NEW_ROWS:] = grown.keys
                kept.values[:, :, -NEW_ROWS:] = grown.values
            walker.propose(tokens, anchors, caches, visible, config.num_proposals)

    times = _times(round_, repeats, now)
    return DraftCost(context, *times, sum(one.num_bytes for one in caches))


def _times(act: Callable[[], object], repeats: int, now: Callable[[], float]) -> tuple[float, float]:
    """Median and least milliseconds."""
    found = []
    for _ in range(_WARM_UP + repeats):
        begun = now()
        act()
        found.append(1000.0 * (now() - begun))
    return statistics.median(found[_WARM_UP:]), min(found[_WARM_UP:])
