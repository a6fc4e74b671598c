"""One `Generate` from admission to its end: its choices, and everyone who reads them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from coordinator.broadcast import Broadcast
from coordinator.choice import Choice
from coordinator.lookup import LookupIndex
from coordinator.output import Outlet
from coordinator.request import Request
from coordinator.services import Setting
from coordinator.slots import Place
from coordinator.tuning import Plan
from protos import coordinator_pb2
from protos.errors import DliteError


@dataclass(frozen=True)
class Prepared:
    """A validated request.

    Args:
        arrived: when, on the rounds' clock.
        lookups: for each choice an index of the tokens; None when it does not use lookup drafts.
    """

    request: Request
    arrived: float
    lookups: tuple[LookupIndex | None, ...]


def prepare(request: Request, arrived: float) -> Prepared:
    """Indexes the request's tokens: the part of admission that grows with the prompt."""
    num_choices = 1 + len(request.other_keys)
    if not request.plan.uses_lookup:
        return Prepared(request, arrived, (None,) * num_choices)
    index = LookupIndex(request.token_ids)
    return Prepared(request, arrived, (index, *(index.copy() for _ in request.other_keys)))


class Listener(Protocol):
    """Who is told of a generation's course. All calls are made on the event loop and never wait."""

    def on_finished(self, generation: Generation, choice: Choice) -> None:
        """A choice has ended: `choice.finished` is set and said."""
        ...

    def on_end(self, generation: Generation) -> None:
        """All choices have ended; nothing is said any more."""
        ...


class Generation:
    """A request under way.

    Args:
        place: its place at the target, granted or not; given up at the end.
    """

    def __init__(
        self,
        prepared: Prepared,
        setting: Setting,
        place: Place,
        listener: Listener,
    ) -> None:
        self.request = prepared.request
        self._place = place
        self._listener = listener
        self._now = setting.now
        self._arrived = prepared.arrived
        self._broadcast = Broadcast(setting.max_queued)
        self._choices = [
            Choice(index, request, lookup, setting, self._broadcast)
            for index, (request, lookup) in enumerate(
                zip(self.request.choices(), prepared.lookups, strict=True)
            )
        ]
        self._running: dict[asyncio.Task[None], Choice] = {}
        self._task: asyncio.Task[None] | None = None
        self._reason: DliteError | None = None

    @property
    def seconds(self) -> float:
        """Since the request arrived."""
        return self._now() - self._arrived

    def start(self) -> None:
        """Says Started and begins to decode as soon as there is a place."""
        request = self.request
        started = coordinator_pb2.Started(
            request_id=request.public_id,
            sampling_key=request.sampling_key,
            num_prompt_tokens=request.num_prompt_tokens,
            choice_sampling_keys=(request.sampling_key, *request.other_keys),
        )
        if request.session.is_continued:
            started.prompt_token_ids.extend(request.token_ids[: request.num_prompt_tokens])
        response = coordinator_pb2.GenerateResponse(started=started)
        if request.params.prompt_logprobs:
            self._choices[0].hold_started(response)
        else:
            self._broadcast.put(response)
        self._task = asyncio.create_task(self._run(), name=f"generation {request.request_id}")
        self._task.add_done_callback(self._on_done)

    def set_plan(self, plan: Plan) -> None:
        """How all its choices speculate from their next rounds on."""
        for choice in self._choices:
            choice.set_plan(plan)

    def attach(self) -> Outlet:
        """A reader of everything from the start. The last reader that goes aborts the request."""
        return self._broadcast.attach()

    def detach(self, outlet: Outlet) -> None:
        """A reader goes; harmless when it has gone."""
        self._broadcast.detach(outlet)
        if not self._broadcast.num_readers:
            self.abort()

    @property
    def num_readers(self) -> int:
        return self._broadcast.num_readers

    def is_last_reader(self, outlet: Outlet) -> bool:
        """Whether nobody else reads."""
        return self._broadcast.num_readers == 1 and self._broadcast.reads(outlet)

    def abort(self, reason: DliteError | None = None) -> None:
        """Ends the request as soon as possible; harmless when it has ended.

        Args:
            reason: becomes the status of the stream; None ends it cleanly.
        """
        if self._task is not None and not self._task.done() and not self._task.cancelling():
            self._reason = reason
            self._task.cancel()

    async def wait_ended(self) -> None:
        if self._task is not None:
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        await self._place.wait()
        try:
            first, *others = self._choices
            self._begin(first)
            if others:
                opened = asyncio.ensure_future(first.wait_opened())
                await asyncio.wait({opened, *self._running}, return_when=asyncio.FIRST_COMPLETED)
                opened.cancel()
            for choice in others:
                self._begin(choice)
            while self._running:
                await asyncio.wait(self._running)
        finally:
            for task in self._running:
                task.cancel()
            while self._running:
                await asyncio.wait(self._running)

    def _begin(self, choice: Choice) -> None:
        task = choice.start(self.seconds)
        self._running[task] = choice
        task.add_done_callback(self._on_choice_done)

    def _on_choice_done(self, task: asyncio.Task[None]) -> None:
        self._end(self._running.pop(task), self._outcome(task))

    def _on_done(self, task: asyncio.Task[None]) -> None:
        outcome = self._outcome(task)
        try:
            for choice in self._choices:
                self._end(choice, outcome)
        finally:
            # Whatever went wrong: the place is free again, and no reader waits for more.
            self._place.leave()
            self._listener.on_end(self)
            failures = [choice.error for choice in self._choices if choice.error is not None]
            self._broadcast.close(self._reason or next(iter(failures), None))

    def _end(self, choice: Choice, outcome: BaseException | None) -> None:
        if choice.finished is None:
            choice.end(outcome)
            self._listener.on_finished(self, choice)

    def _outcome(self, task: asyncio.Task[None]) -> BaseException | None:
        if not task.cancelled():
            return task.exception()
        return asyncio.CancelledError(str(self._reason) if self._reason else "aborted")
