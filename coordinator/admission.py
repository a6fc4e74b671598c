"""Which requests are there, by id: being admitted, or running. The same request twice is one request."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from coordinator.generation import Generation
from protos import coordinator_pb2
from protos.errors import AlreadyExists


def body_digest(message: coordinator_pb2.GenerateRequest) -> bytes:
    """Equal for equal requests (maps in any order)."""
    return hashlib.sha256(message.SerializeToString(deterministic=True)).digest()


@dataclass(eq=False)
class _Entry:
    """A request from its first call to its end; `num_callers` wait for its admission."""

    digest: bytes
    task: asyncio.Task[Generation]
    num_callers: int = 0

    @property
    def generation(self) -> Generation | None:
        """None while it is being admitted."""
        has_result = self.task.done() and not self.task.cancelled() and self.task.exception() is None
        return self.task.result() if has_result else None

    def abandon(self) -> None:
        """Its last caller went before it could read."""
        self.task.cancel()
        generation = self.generation
        if generation is not None and not generation.num_readers:
            generation.abort()


class Admissions:
    """All requests of a coordinator that have not ended.

    Invariant: an id has one entry from the first call on until its generation has ended or its
    admission has failed; an admission that nobody waits for any more is cancelled.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    @property
    def running(self) -> list[Generation]:
        return [entry.generation for entry in self._entries.values() if entry.generation is not None]

    def find(self, request_id: str) -> Generation | None:
        """The running request of this id."""
        entry = self._entries.get(request_id)
        return None if entry is None else entry.generation

    def abort(self, request_id: str) -> bool:
        """Aborts a request for all who read it; False when there is none of this id."""
        entry = self._entries.get(request_id)
        if entry is None:
            return False
        entry.task.cancel()
        if entry.generation is not None:
            entry.generation.abort()
        return True

    async def join(
        self, request_id: str, digest: bytes, admit: Callable[[], Awaitable[Generation]]
    ) -> Generation:
        """The generation of this id: the one that is there, or a new one by `admit`.

        Raises:
            AlreadyExists: the id belongs to a request with another body.
            DliteError: of `admit`, for everyone who waits for it.
        """
        entry = self._entries.get(request_id)
        if entry is None:
            entry = self._entries[request_id] = _Entry(digest, asyncio.create_task(self._start(admit)))
            entry.task.add_done_callback(lambda task: self._on_admitted(request_id, task))
        elif entry.digest != digest:
            raise AlreadyExists(
                f"{request_id!r} is running with another body: use another id", field="request_id"
            )
        entry.num_callers += 1
        try:
            return await asyncio.shield(entry.task)
        except asyncio.CancelledError:
            if entry.num_callers == 1:
                entry.abandon()
            raise
        finally:
            entry.num_callers -= 1

    def forget(self, generation: Generation) -> None:
        """The generation has ended."""
        self._entries.pop(generation.request.request_id, None)

    async def _start(self, admit: Callable[[], Awaitable[Generation]]) -> Generation:
        generation = await admit()
        generation.start()
        return generation

    def _on_admitted(self, request_id: str, task: asyncio.Task[Generation]) -> None:
        if task.cancelled() or task.exception() is not None:
            del self._entries[request_id]
