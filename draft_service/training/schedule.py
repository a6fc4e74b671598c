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
    """

    def __init__(self, num_anchors: int, seed: int) -> None:
        self._num_anchors = num_anchors
        self._seed = seed
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
            self._order = torch.randperm(self._num_anchors, generator=generator(self._seed, 2, epoch))
            self._epoch = epoch
        return self._order
