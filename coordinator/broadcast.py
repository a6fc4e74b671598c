"""Everything a request says, for every reader: one that attaches late gets it from the start."""

from __future__ import annotations

import asyncio

from coordinator.output import ClientStalled, Outlet
from protos import coordinator_pb2
from protos.errors import DliteError

# Said deltas are kept joined in blocks of about so many tokens.
_BLOCK_TOKENS = 256


class Broadcast:
    """The messages of one request and those who read them.

    Invariant: what was said and the backlog of a reader that attaches now are the same text, ids and
    order within a choice; deltas may be joined.

    Args:
        max_queued: messages that may wait for a reader before it counts as slow.
    """

    def __init__(self, max_queued: int) -> None:
        self._max_queued = max_queued
        self._said: list[coordinator_pb2.GenerateResponse] = []
        self._open_blocks: dict[int, coordinator_pb2.Delta] = {}
        self._outlets: list[Outlet] = []
        self._has_room = asyncio.Event()
        self._closed = False
        self._error: DliteError | None = None

    @property
    def num_readers(self) -> int:
        return len(self._outlets)

    @property
    def is_full(self) -> bool:
        """Whether no reader keeps up: the fastest one sets the pace."""
        return bool(self._outlets) and all(outlet.is_full for outlet in self._outlets)

    def reads(self, outlet: Outlet) -> bool:
        return outlet in self._outlets

    def attach(self) -> Outlet:
        """A new reader, from the start."""
        # Copies: an open block grows, and a message handed out must not.
        backlog = []
        for message in self._said:
            copy = coordinator_pb2.GenerateResponse()
            copy.CopyFrom(message)
            backlog.append(copy)
        outlet = Outlet(self._max_queued, backlog, self._has_room.set)
        if self._closed:
            outlet.close(self._error)
        self._outlets.append(outlet)
        self._has_room.set()
        return outlet

    def detach(self, outlet: Outlet) -> None:
        """A reader goes; harmless when it has gone."""
        if outlet in self._outlets:
            self._outlets.remove(outlet)
            self._has_room.set()

    def put(self, message: coordinator_pb2.GenerateResponse) -> None:
        for outlet in self._outlets:
            outlet.put(message)
        self._keep(message)

    def close(self, error: DliteError | None) -> None:
        """Ends the stream of every reader; with an error its status follows."""
        self._closed, self._error = True, error
        for outlet in self._outlets:
            outlet.close(error)

    async def wait_for_room(self, timeout_seconds: float) -> None:
        """Waits until some reader has read.

        Raises:
            ClientStalled: none did.
        """
        if not self.is_full:
            return
        try:
            async with asyncio.timeout(timeout_seconds):
                while self.is_full:
                    self._has_room.clear()
                    await self._has_room.wait()
        except TimeoutError:
            unread = min(outlet.num_queued for outlet in self._outlets)
            raise ClientStalled(
                f"the client left {unread} messages unread for {timeout_seconds:g} s"
            ) from None

    def _keep(self, message: coordinator_pb2.GenerateResponse) -> None:
        if not message.HasField("delta"):
            self._said.append(message)
            return
        delta = message.delta
        block = self._open_blocks.get(delta.index)
        if block is None or len(block.token_ids) >= _BLOCK_TOKENS:
            kept = coordinator_pb2.GenerateResponse()
            kept.CopyFrom(message)
            self._said.append(kept)
            self._open_blocks[delta.index] = kept.delta
            return
        block.token_ids.extend(delta.token_ids)
        block.logprobs.extend(delta.logprobs)
        block.tool_calls.extend(delta.tool_calls)
        block.text += delta.text
