"""Whether the server knew the prompts before this run: a second run of the same prompts looks fast. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.loadtest.samples import Sample


@dataclass(frozen=True)
class Warmth:
    """Of the first wave: requests sent before any of the run had a token.

    What they found cached was there before the run. Later ones may share prompts within it.
    """

    num_cached: int
    num_prompt_tokens: int

    @property
    def is_warm(self) -> bool:
        return self.num_cached > 0

    @property
    def warning(self) -> str:
        return (
            f"the prefix cache was warm before this run: {self.num_cached} of {self.num_prompt_tokens} "
            "prompt tokens of the first requests were cached; use fresh prompts (no --seed) or restart "
            "the target"
        )


def warmth(samples: Sequence[Sample]) -> Warmth:
    """Judges a run by its first wave."""
    first_token = min((each.chunks[0].seconds for each in samples if each.chunks), default=0.0)
    wave = [each for each in samples if each.is_ok and each.started_seconds < first_token]
    return Warmth(
        num_cached=sum(each.finished.usage.cached_tokens for each in wave),
        num_prompt_tokens=sum(each.num_prompt_tokens for each in wave),
    )
