"""Who holds which page of the KV pool.

A page is in exactly one state:

    free        nobody's; handed out first
    held        listed by `references` >= 1 sequences
    cached      held by none, but its content is published in the prefix index; handed out when no
                free page is left, least recently released first

Invariant (`check_integrity`): the three sets are disjoint and cover the pool; a page's references
are the number of sequences that list it; every cached page is published.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence

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
        self._published: dict[int, Callable[[int], None]] = {}  # page -> whom to tell when it goes
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently released first

    def __repr__(self) -> str:
        return (
            f"BlockPool({len(self._free)} free, {len(self._cached)} cached, "
            f"of {self.num_pages} pages of {self.page_size})"
        )

    @property
    def num_available(self) -> int:
        """Pages that `allocate` can give: free ones and cached ones that nobody holds."""
        return len(self._free) + len(self._cached)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    def pages_for(self, num_tokens: int) -> int:
        """Pages that `num_tokens` cached tokens take."""
        return -(-num_tokens // self.page_size)

    def references(self, page: int) -> int:
        return self._references[page]

    def allocate(self, count: int) -> list[int]:
        """Takes `count` pages with one reference each; cached ones are forgotten by the index.

        Raises:
            OutOfPages: fewer are available; nothing was taken.
        """
        if count > self.num_available:
            raise OutOfPages(f"{count} pages wanted, {self.num_available} of {self.num_pages} available")
        while len(self._free) < count:
            page, _ = self._cached.popitem(last=False)
            self._published.pop(page)(page)
            self._free.append(page)
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._references[page] = 1
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """Adds a reference to pages that are held or cached."""
        for page in pages:
            if self._references[page] == 0:
                del self._cached[page]  # KeyError: the page is free, its content is nobody's
            self._references[page] += 1

    def publish(self, page: int, on_forget: Callable[[int], None]) -> None:
        """Keeps a held page's content when it is released; `on_forget(page)` when it is given away."""
        if self._references[page] < 1:
            raise AssertionError(f"page {page} is published and nobody holds it")
        self._published[page] = on_forget

    def release(self, pages: Sequence[int]) -> None:
        """Drops one reference of each page; tail pages first, so that heads stay longest."""
        for page in reversed(pages):
            if self._references[page] < 1:
                raise AssertionError(f"page {page} is released more often than it was taken")
            self._references[page] -= 1
            if self._references[page]:
                continue
            if page in self._published:
                self._cached[page] = None
            else:
                self._free.append(page)

    def retract(self, page: int) -> None:
        """Takes back the publication of a page, unless somebody holds it; a cached page becomes free."""
        if page in self._cached:
            del self._cached[page]
            self._published.pop(page)(page)
            self._free.append(page)

    def forget_cached(self) -> None:
        """Empties the cache: every cached page becomes free."""
        for page in list(self._cached):
            self._published.pop(page)(page)
            self._free.append(page)
        self._cached.clear()

    def check_integrity(self, holders: Iterable[Sequence[int]]) -> None:
        """Compares the pool with the page lists of all sequences.

        Raises:
            AssertionError: a page is lost, doubly held, or in two states.
        """
        counted = Counter(page for pages in holders for page in pages)
        for page, references in enumerate(self._references):
            if counted[page] != references:
                raise AssertionError(f"page {page}: {references} references, {counted[page]} holders")
        free, cached = set(self._free), set(self._cached)
        held = {page for page, references in enumerate(self._references) if references}
        if len(free) != len(self._free) or free & cached or held & (free | cached):
            raise AssertionError("a page is in two states")
        if len(held) + len(free) + len(cached) != self.num_pages:
            raise AssertionError(
                f"{len(held)} held + {len(free)} free + {len(cached)} cached != {self.num_pages} pages"
            )
        if not cached <= set(self._published):
            raise AssertionError("a cached page is not published")
