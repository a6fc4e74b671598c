"""Sends the sessions of one segment and records what came. Time is that of the running event loop."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from coordinator.loadtest.samples import Place, Recording, Sample
from coordinator.loadtest.workload import Arm, Conversation, RequestFields, Script
from protos import coordinator_pb2
from protos.errors import DliteError

Send = Callable[[coordinator_pb2.GenerateRequest], AsyncGenerator[coordinator_pb2.GenerateResponse]]


@dataclass(frozen=True)
class Pace:
    """When sessions start.

    Args:
        offsets: seconds from the start, one a session (open loop); None: when a place is free (closed).
        max_concurrency: sessions at once; a session keeps its place while its tool works.
        max_seconds: after so long no further request is sent.
    """

    offsets: tuple[float, ...] | None = None
    max_concurrency: int | None = None
    max_seconds: float = math.inf


@dataclass(frozen=True)
class Segment:
    """What one arm did for a while. `num_unsent`: requests that no longer fitted into the time."""

    arm: Arm
    samples: tuple[Sample, ...]
    start_seconds: float
    end_seconds: float
    num_unsent: int

    @property
    def duration_seconds(self) -> float:
        return self.end_seconds - self.start_seconds


class Runner:
    """Runs segments, one after the other.

    Args:
        send: streams the answer of a request; `AsyncClient.generate`, or a fake.
        on_sample: called with every finished request.
    """

    def __init__(
        self, send: Send, common: RequestFields, on_sample: Callable[[Sample], None] = lambda sample: None
    ) -> None:
        self._send = send
        self._common = common
        self._on_sample = on_sample

    async def run(self, scripts: Sequence[Script], pace: Pace, arm: Arm) -> Segment:
        """Runs all sessions to their end. A failed request ends its session, not the run.

        Raises:
            InvalidRequest: a request cannot be built.
        """
        loop = asyncio.get_running_loop()
        start = loop.time()
        places = asyncio.Semaphore(pace.max_concurrency or max(len(scripts), 1))
        samples: list[Sample] = []
        offsets = pace.offsets or (0.0,) * len(scripts)
        async with asyncio.TaskGroup() as group:
            for script, offset in zip(scripts, offsets, strict=True):
                scheduled = None
                if pace.offsets is None:
                    await places.acquire()
                else:
                    scheduled = start + offset
                    await asyncio.sleep(max(scheduled - loop.time(), 0.0))
                if loop.time() - start >= pace.max_seconds:
                    break
                session = _Session(script, arm, scheduled, start + pace.max_seconds)
                group.create_task(self._in_place(session, places, samples))
        num_planned = sum(len(script.turns) for script in scripts)
        return Segment(arm, tuple(samples), start, loop.time(), num_planned - len(samples))

    async def _in_place(self, session: _Session, places: asyncio.Semaphore, samples: list[Sample]) -> None:
        """One session; in an open loop it first waits for a place."""
        if session.scheduled_seconds is not None:
            await places.acquire()
        try:
            await self._session(session, samples)
        finally:
            places.release()

    async def _session(self, session: _Session, samples: list[Sample]) -> None:
        loop = asyncio.get_running_loop()
        conversation = Conversation(session.script, session.arm, self._common)
        scheduled = loop.time() if session.scheduled_seconds is None else session.scheduled_seconds
        for number, turn in enumerate(session.script.turns):
            if number:
                scheduled = loop.time() + turn.pause_seconds
                await asyncio.sleep(turn.pause_seconds)
            if loop.time() >= session.last_start_seconds:
                return
            recording = Recording(Place(session.script.index, number), scheduled, loop.time())
            sample = await self._request(conversation.request(number), recording, turn.cancel_after)
            samples.append(sample)
            self._on_sample(sample)
            if sample.error:
                return
            conversation.add_answer(sample)

    async def _request(
        self, message: coordinator_pb2.GenerateRequest, recording: Recording, cancel_after: int | None
    ) -> Sample:
        loop = asyncio.get_running_loop()
        try:
            async with aclosing(self._send(message)) as responses:
                async for response in responses:
                    recording.add(response, loop.time())
                    if cancel_after is not None and recording.num_tokens >= cancel_after:
                        return recording.end(loop.time(), cancelled=True)
        except DliteError as error:
            return recording.end(loop.time(), error)
        return recording.end(loop.time())


@dataclass(frozen=True)
class _Session:
    """A session about to run; `scheduled_seconds` is None in a closed loop: as soon as it has a place."""

    script: Script
    arm: Arm
    scheduled_seconds: float | None
    last_start_seconds: float
