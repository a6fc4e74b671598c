"""Joins the parts of a big Open, which travels in messages below 1 MiB."""

from __future__ import annotations

from collections.abc import Sequence

from protos.errors import InvalidRequest

MAX_PARTS = 64
PartKey = tuple[str, int]  # request id, epoch


class OpenParts:
    """The token ids of the unfinished Opens of one stream."""

    def __init__(self) -> None:
        self._token_ids: dict[PartKey, list[int]] = {}
        self._next_part: dict[PartKey, int] = {}

    def __len__(self) -> int:
        return len(self._token_ids)

    def join(self, key: PartKey, part: int, parts: int, token_ids: Sequence[int]) -> list[int] | None:
        """Adds part `part` of `parts`; all token ids at the last part, None while some are missing.

        Raises:
            InvalidRequest: parts out of order or too many; what was joined is dropped.
        """
        if parts > MAX_PARTS or part != self._next_part.get(key, 0) or part >= parts:
            self._drop(key)
            raise InvalidRequest(f"part {part} of {parts} is not the next one", field="open.part")
        joined = self._token_ids.setdefault(key, [])
        joined.extend(token_ids)
        self._next_part[key] = part + 1
        if part < parts - 1:
            return None
        self._drop(key)
        return joined

    def _drop(self, key: PartKey) -> None:
        self._token_ids.pop(key, None)
        self._next_part.pop(key, None)
