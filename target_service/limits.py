"""The engine's sizes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineLimits:
    """Sizes of the pool and of a step.

    Args:
        page_size: tokens a page holds.
        num_pages: pages in the pool.
        prefill_rows: most rows of prefill in a step, over all sequences.
        max_context: longest prompt plus generated tokens.
        max_verify_block_size: most rows of one verification, anchor included.
        eos_ids: tokens that end a text.
        prefix_root: what the prefix cache's hashes start from (model fingerprint).
        uses_prefix_cache: whether pages of past texts are found again.
        prefill_seconds: time that prefill may take of a step; 0 for no limit but prefill_rows.
    """

    page_size: int
    num_pages: int
    prefill_rows: int
    max_context: int
    max_verify_block_size: int
    eos_ids: frozenset[int]
    prefix_root: bytes = b""
    uses_prefix_cache: bool = True
    prefill_seconds: float = 0.0
