"""Joins the parts of a big Open, which travels in messages below 1 MiB."""

from __future__ import annotations

from protos import target_pb2
from protos.errors import InvalidRequest

MAX_PARTS = 64


class OpenParts:
    """The unfinished Opens of one stream."""

    def __init__(self) -> None:
        self._token_ids: dict[tuple[str, int], list[int]] = {}
        self._next_part: dict[tuple[str, int], int] = {}

    def __len__(self) -> int:
        return len(self._token_ids)

    def join(self, command: target_pb2.Command) -> target_pb2.Command | None:
        """The command itself; a whole Open at its last part; None while parts are missing.

        Raises:
            InvalidRequest: parts out of order or too many; what was joined is dropped.
        """
        if command.WhichOneof("kind") != "open" or command.open.parts <= 1:
            return command
        part, parts = command.open.part, command.open.parts
        key = (command.request_id, command.epoch)
        if parts > MAX_PARTS or part != self._next_part.get(key, 0) or part >= parts:
            self._drop(key)
            raise InvalidRequest(f"part {part} of {parts} is not the next one", field="open.part")
        joined = self._token_ids.setdefault(key, [])
        joined.extend(command.open.token_ids)
        self._next_part[key] = part + 1
        if part < parts - 1:
            return None
        whole = target_pb2.Command()
        whole.CopyFrom(command)
        del whole.open.token_ids[:]
        whole.open.token_ids.extend(joined)
        self._drop(key)
        return whole

    def _drop(self, key: tuple[str, int]) -> None:
        self._token_ids.pop(key, None)
        self._next_part.pop(key, None)
