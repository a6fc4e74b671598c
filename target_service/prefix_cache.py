"""Finds pages whose content is the beginning of a new sequence.

A full page of committed tokens is published under a hash that chains on the page before it and
starts from the model's fingerprint, so equal hashes mean equal prefixes of the same model. A hit
compares the tokens too: a collision costs a miss, never a wrong text. A hit leaves at least one
token to compute, so the pivot features are always fresh and need no store.

Invariant (`check_integrity`): a page is published under one hash; its record names that page.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from target_service.block_pool import BlockPool

_DIGEST_BYTES = 16


@dataclass(frozen=True)
class _Record:
    page: int
    token_ids: tuple[int, ...]


class PrefixCache:
    """The index of published pages.

    Args:
        pool: where the pages live; it tells the index when it gives one away.
        root: what every chain starts from: the model's fingerprint.
    """

    def __init__(self, pool: BlockPool, root: bytes) -> None:
        self._pool = pool
        self._root = hashlib.blake2b(root, digest_size=_DIGEST_BYTES).digest()
        self._records: dict[bytes, _Record] = {}
        self._hash_of: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._records)

    def chain(self, parent: bytes | None, token_ids: Sequence[int]) -> bytes:
        """Hash of a page after `parent` (None for the first page)."""
        digest = hashlib.blake2b(parent or self._root, digest_size=_DIGEST_BYTES)
        digest.update(struct.pack(f"<{len(token_ids)}I", *token_ids))
        return digest.digest()

    def _start(self, salt: bytes) -> bytes | None:
        """What the chain of a salt starts from; of another salt no page is found."""
        if not salt:
            return None
        return hashlib.blake2b(self._root + salt, digest_size=_DIGEST_BYTES).digest()

    def acquire(self, token_ids: Sequence[int], salt: bytes = b"") -> tuple[list[int], list[bytes]]:
        """Pages that hold the longest published prefix, with a reference added to each.

        At most `len(token_ids) - 1` tokens, in whole pages.

        Returns:
            Pages, and their hashes in the same order.
        """
        size = self._pool.page_size
        pages: list[int] = []
        hashes: list[bytes] = []
        parent = self._start(salt)
        for start in range(0, (len(token_ids) - 1) // size * size, size):
            page_tokens = tuple(token_ids[start : start + size])
            parent = self.chain(parent, page_tokens)
            record = self._records.get(parent)
            if record is None or record.token_ids != page_tokens:
                break
            pages.append(record.page)
            hashes.append(parent)
        self._pool.share(pages)
        return pages, hashes

    def publish(
        self, token_ids: Sequence[int], pages: Sequence[int], hashes: list[bytes], salt: bytes = b""
    ) -> None:
        """Publishes full pages of committed tokens that are not published yet.

        Args:
            token_ids: committed tokens that are in the KV.
            pages: the sequence's pages.
            hashes: of its pages so far; grows by the new ones.
        """
        size = self._pool.page_size
        for i in range(len(hashes), len(token_ids) // size):
            page_tokens = tuple(token_ids[i * size : (i + 1) * size])
            value = self.chain(hashes[-1] if hashes else self._start(salt), page_tokens)
            hashes.append(value)
            if value not in self._records:  # an equal page of another sequence may be there already
                self._records[value] = _Record(pages[i], page_tokens)
                self._hash_of[pages[i]] = value
                self._pool.publish(pages[i], self._forget)

    def retract(self, token_ids: Sequence[int], keep_length: int, salt: bytes = b"") -> None:
        """Forgets the pages of a text that reach beyond its first `keep_length` tokens.

        A page that a sequence holds stays: what does not stand for one text stands for the other.
        """
        size = self._pool.page_size
        parent = self._start(salt)
        for start in range(0, len(token_ids) // size * size, size):
            parent = self.chain(parent, token_ids[start : start + size])
            record = self._records.get(parent)
            if start + size > keep_length and record is not None:
                self._pool.retract(record.page)

    def _forget(self, page: int) -> None:
        del self._records[self._hash_of.pop(page)]

    def check_integrity(self) -> None:
        """Raises AssertionError when the invariant above does not hold."""
        assert len(self._records) == len(self._hash_of), "a page is published twice"
        for page, value in self._hash_of.items():
            assert self._records[value].page == page, f"page {page} is not the one of its record"
