"""What depends on the step alone: learning rate, block sizes, which anchors come next. Pure.

Nothing here keeps state, so a run that was killed at any step goes on as if it had not been.
"""

from __future__ import annotations

import torch

_STRIDE = 1_000_003


def lr_factor(step: int, steps: int, warmup_fraction: float, decay_fraction: float) -> float:
    """Rises linearly over the first part, stays at 1, falls linearly towards 0 over the last part."""
    warmup = warmup_fraction * steps
    decay = decay_fraction * steps
    rising = (step + 1) / warmup if warmup else 1.0
    falling = (steps - step) / decay if decay else 1.0
    return min(1.0, rising, falling)


def generator(seed: int, purpose: int, index: int) -> torch.Generator:
    """A generator of its own for every (seed, purpose, index)."""
    return torch.Generator().manual_seed((seed * _STRIDE + purpose) * _STRIDE + index)


def block_size_of(step: int, group: int, num_proposals: int, bias: float, seed: int) -> int:
    """k of one group: in 1..K with probability proportional to k^-bias."""
    weights = torch.arange(1, num_proposals + 1, dtype=torch.float64) ** -bias
    drawn = torch.multinomial(weights, 1, generator=generator(seed, 1, step * _STRIDE + group))
    return 1 + int(drawn)


class AnchorOrder:
    """All anchors in a new random order each epoch; position i of the stream is a function of (seed, i).

    Args:
        num_anchors: of one epoch.
        seed: of the order.
        texts: [num_anchors] the text of each anchor, with `per_text` > 1.
        per_text: anchors of a text, drawn at random, that follow each other; whole runs are shuffled.
    """

    def __init__(
        self, num_anchors: int, seed: int, texts: torch.Tensor | None = None, per_text: int = 1
    ) -> None:
        self._num_anchors = num_anchors
        self._seed = seed
        self._texts = texts if per_text > 1 else None
        self._per_text = per_text
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)

    def take(self, start: int, count: int) -> torch.Tensor:
        """Indices [count] of the stream's positions start, start + 1, .."""
        parts = []
        while count:
            epoch, offset = divmod(start, self._num_anchors)
            part = self._of(epoch)[offset : offset + count]
            parts.append(part)
            start, count = start + len(part), count - len(part)
        return torch.cat(parts)

    def _of(self, epoch: int) -> torch.Tensor:
        if epoch != self._epoch:
            source = generator(self._seed, 2, epoch)
            self._order = torch.randperm(self._num_anchors, generator=source)
            if self._texts is not None:
                self._order = in_runs(self._order, self._texts, self._per_text, source)
            self._epoch = epoch
        return self._order


def in_runs(
    order: torch.Tensor,  # [A] a permutation
    texts: torch.Tensor,  # [A] the text of each anchor
    per_text: int,
    source: torch.Generator,
) -> torch.Tensor:
    """The permutation with anchors of a text brought together in runs of `per_text`, runs in random order."""
    by_text = order[torch.argsort(texts[order], stable=True)]  # texts one after another, random inside
    _, sizes = torch.unique_consecutive(texts[by_text], return_counts=True)
    starts = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    rank = torch.arange(len(order)) - starts
    first_of_run = rank % per_text == 0
    run = first_of_run.cumsum(0) - 1
    keys = torch.randperm(int(run[-1]) + 1, generator=source)
    return by_text[torch.argsort(keys[run], stable=True)]
