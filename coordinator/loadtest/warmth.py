"""Whether the server knew the prompts before this run: a second run of the same prompts looks fast. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.loadtest.samples import Sample


@dataclass(frozen=True)
class Warmth:
    """Of the first wave: requests sent before any of the run had a token.

    Whoever of them came first found only what was cached before the run; the others may also share
    a prefix with it. So the run was warm when *all* of them found something.
    """

    num_cached: int
    num_prompt_tokens: int
    is_warm: bool

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
    cached = [each.finished.usage.cached_tokens for each in wave]
    return Warmth(
        num_cached=sum(cached),
        num_prompt_tokens=sum(each.num_prompt_tokens for each in wave),
        is_warm=min(cached, default=0) > 0,
    )
