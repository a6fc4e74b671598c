"""Who holds which page of the KV pool.

Invariant (`check_integrity`): every page is either free or held, never both; a page's reference
count is the number of sequences that list it; a sequence of `n` cached tokens lists at least
`ceil(n / page_size)` pages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from protos.errors import OutOfPages


class BlockPool:
    """Hands out pages by number. Knows nothing of tensors.

    Args:
        num_pages: pages in the pool.
        page_size: tokens a page holds.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        if num_pages < 1 or page_size < 1:
            raise ValueError(f"a pool needs pages: {num_pages} pages of {page_size}")
        self.num_pages = num_pages
        self.page_size = page_size
        self._free = list(range(num_pages - 1, -1, -1))  # the end is handed out first
        self._references = [0] * num_pages

    def __repr__(self) -> str:
        return f"BlockPool({self.num_free} of {self.num_pages} pages free, page_size={self.page_size})"

    @property
    def num_free(self) -> int:
        return len(self._free)

    def pages_for(self, num_tokens: int) -> int:
        """Pages that `num_tokens` cached tokens take."""
        return -(-num_tokens // self.page_size)

    def allocate(self, count: int) -> list[int]:
        """Takes `count` free pages with one reference each.

        Raises:
            OutOfPages: fewer are free; nothing was taken.
        """
        if count > len(self._free):
            raise OutOfPages(f"{count} pages wanted, {len(self._free)} of {self.num_pages} free")
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._references[page] = 1
        return pages

    def release(self, pages: Sequence[int]) -> None:
        """Drops one reference of each page; tail pages first, so that heads stay longest."""
        for page in reversed(pages):
            if self._references[page] < 1:
                raise AssertionError(f"page {page} is released more often than it was taken")
            self._references[page] -= 1
            if self._references[page] == 0:
                self._free.append(page)

    def check_integrity(self, holders: Iterable[Sequence[int]]) -> None:
        """Compares the pool with the page lists of all sequences.

        Raises:
            AssertionError: a page is lost, doubly held, or free while held.
        """
        counted = Counter(page for pages in holders for page in pages)
        for page, references in enumerate(self._references):
            if counted[page] != references:
                raise AssertionError(f"page {page}: {references} references, {counted[page]} holders")
        if len(set(self._free)) != len(self._free):
            raise AssertionError("a page is on the free list twice")
        held = {page for page, references in enumerate(self._references) if references}
        if held & set(self._free) or len(held) + len(self._free) != self.num_pages:
            raise AssertionError(f"{len(held)} held + {len(self._free)} free != {self.num_pages} pages")
