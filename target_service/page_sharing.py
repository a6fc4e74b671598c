"""Pages that sequences share: prefixes found again, forks, and what is given back.

A shared page is full and never written again: rows are only written at positions >= kv_length, and
everything below is what was found. A fork copies its source's last, partial page instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from target_service.block_pool import BlockPool
from target_service.limits import EngineLimits
from target_service.prefix_cache import PrefixCache
from target_service.sequence import Sequence as Request


class PageSharing:
    """What happens to the pages of sequences, apart from the plan's new ones.

    Args:
        pool: the pages.
        limits: page size, root of the prefix cache and whether it is used.
        copy_page: copies the KV of one page to another.
    """

    def __init__(self, pool: BlockPool, limits: EngineLimits, copy_page: Callable[[int, int], None]) -> None:
        self.prefixes = PrefixCache(pool, limits.prefix_root)
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0
        self._pool = pool
        self._enabled = limits.uses_prefix_cache
        self._copy_page = copy_page

    def acquire(self, sequence: Request) -> None:
        """Gives a sequence without pages those of its longest published prefix."""
        if not self._enabled:
            return
        sequence.pages, sequence.page_hashes = self.prefixes.acquire(sequence.token_ids, sequence.prefix_salt)
        self._found(sequence, len(sequence.pages) * self._pool.page_size)

    def fork(self, source: Request, opened: Request) -> None:
        """Gives a new sequence the pages of one whose tokens begin like its own.

        Full pages are shared; the last one is copied, since both will write it. One token at least
        is left to compute.
        """
        length = min(source.kv_length, opened.committed_length - 1)
        if length < 1 or source.token_ids[:length] != opened.token_ids[:length]:
            return
        if source.prefix_salt != opened.prefix_salt:
            return
        num_full, rest = divmod(length, self._pool.page_size)
        shared = source.pages[:num_full]
        self._pool.share(shared)
        opened.pages = list(shared)
        opened.page_hashes = source.page_hashes[:num_full]
        if rest and self._pool.num_available:
            (copy,) = self._pool.allocate(1)
            self._copy_page(source.pages[num_full], copy)
            opened.pages.append(copy)
        else:
            length = num_full * self._pool.page_size
        self._found(opened, length)

    def _found(self, sequence: Request, length: int) -> None:
        sequence.kv_length = length
        if sequence.last_round < 0:
            sequence.cached_tokens = min(length, sequence.num_prompt_tokens)
        sequence.lost_tokens = max(0, sequence.lost_tokens - length)

    def publish(self, sequence: Request) -> None:
        """Publishes the full pages of committed tokens that are in the KV."""
        if self._enabled:
            committed = sequence.token_ids[: sequence.kv_length]
            self.prefixes.publish(committed, sequence.pages, sequence.page_hashes, sequence.prefix_salt)

    def crop(self, sequence: Request, length: int) -> None:
        """Keeps the first `length` tokens of the KV and gives back the pages behind them; 0 empties it.

        Raises:
            ValueError: the KV has not so many tokens; nothing was changed.
        """
        if not 0 <= length <= sequence.kv_length:
            raise ValueError(f"a KV of {sequence.kv_length} tokens cannot be cropped to {length}")
        keep = self._pool.pages_for(length)
        self._pool.release(sequence.pages[keep:])
        del sequence.pages[keep:]
        sequence.kv_length = length
        del sequence.page_hashes[length // self._pool.page_size :]

    def release(self, sequence: Request) -> None:
        """Gives back all pages, and forgets what they held."""
        self.crop(sequence, 0)

    def close(self, sequence: Request, keep_length: int) -> None:
        """Gives back the pages of a sequence that ends; only its first `keep_length` tokens stand."""
        self.release(sequence)
        if self._enabled and keep_length < sequence.committed_length:
            self.prefixes.retract(sequence.token_ids, keep_length, sequence.prefix_salt)

    def check_integrity(self, holders: Iterable[Sequence[int]]) -> None:
        """Raises AssertionError when pool or index break their invariant."""
        self._pool.check_integrity(holders)
        self.prefixes.check_integrity()
