"""Where a new text should go: where its session or the beginning of its prompt is, unless another target
has much less to do. Pure.

Of a prompt the hashes of beginnings of 1, 2, 3, 4, 6, 8, 12, .. whole pages are remembered: a target
finds pages by such hashes too, so what matches here is there, as long as the target has kept it.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence

# A beginning counts when it is at least this part of the prompt: all prompts share the first words of a
# chat template, and nothing is won by sending all of them to one target for that.
LEAST_SHARE = 0.25
# A favourite may have so many texts more than the least busy target, and half as many again.
SLACK_TEXTS = 4
_SLACK_FACTOR = 1.5
# Sessions and beginnings that are remembered; those not used for longest go.
MOST_ENTRIES = 65_536
_DIGEST_BYTES = 12
# Used when a target states no size of pages.
DEFAULT_PAGE_SIZE = 16


def beginnings_of(salt: bytes, token_ids: Sequence[int], page_size: int) -> tuple[tuple[int, bytes], ...]:
    """Number of tokens and hash of beginnings of a prompt, the shortest first.

    Args:
        salt: no two tenants share pages.
    """
    page_size = page_size or DEFAULT_PAGE_SIZE
    digest = hashlib.blake2b(salt, digest_size=_DIGEST_BYTES)
    found: list[tuple[int, bytes]] = []
    done = 0
    for num_pages in _depths(len(token_ids) // page_size):
        end = num_pages * page_size
        digest.update(array("q", token_ids[done:end]).tobytes())
        found.append((end, digest.digest()))
        done = end
    return tuple(found)


def _depths(most: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, .. up to `most`."""
    depths, power = [1, 2, 3], 4
    while power <= most:
        depths += [power, power + power // 2]
        power *= 2
    return [depth for depth in depths if depth <= most]


class Affinity:
    """Which target holds what, as far as this coordinator knows: each session and beginning was last at
    one of them."""

    def __init__(self, most_entries: int = MOST_ENTRIES) -> None:
        self._most_entries = most_entries
        self._last_at: OrderedDict[bytes | str, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._last_at)

    def favourite(self, session: str, beginnings: Sequence[tuple[int, bytes]], num_tokens: int) -> str | None:
        """Where a text of so many prompt tokens would find most of its pages.

        Args:
            session: its name in the whole coordinator; empty for none.
        """
        if session and session in self._last_at:
            return self._last_at[session]
        for length, digest in reversed(beginnings):
            if length < LEAST_SHARE * num_tokens:
                return None
            if digest in self._last_at:
                return self._last_at[digest]
        return None

    def note(self, session: str, beginnings: Sequence[tuple[int, bytes]], target: str) -> None:
        """The text goes to this target."""
        for key in (*((session,) if session else ()), *(digest for _, digest in beginnings)):
            self._last_at[key] = target
            self._last_at.move_to_end(key)
        while len(self._last_at) > self._most_entries:
            self._last_at.popitem(last=False)


def choose(loads: Mapping[str, tuple[int, int]], favourite: str | None) -> str:
    """The favourite, or the least busy target where the favourite is not there or has much more to do.

    Args:
        loads: by target: texts that run there, and texts it ever had, which decides between equals. Not
            empty.
    """
    least = min(loads, key=lambda target: loads[target])
    if favourite is None or favourite not in loads:
        return least
    most_texts = _SLACK_FACTOR * loads[least][0] + SLACK_TEXTS
    return favourite if loads[favourite][0] <= most_texts else least
