"""The one thread that owns the engine. Others post to its inbox; events leave through `emit`."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from target_service.commands import Command, Event, Progress
from target_service.engine import Engine

PROGRESS_SECONDS = 0.5
# With work that cannot be planned yet (pages are out), look again this often.
STARVED_SECONDS = 0.02
# Idle between two rounds of one request is no time to look through all pages: at most this often.
INTEGRITY_SECONDS = 1.0

log = logging.getLogger("dlite.target")


@dataclass(frozen=True)
class DropCoordinator:
    """A coordinator's stream has ended."""

    coordinator_id: str


@dataclass(frozen=True)
class _Stop:
    pass


class EngineThread:
    """Runs commands and steps in turn.

    Args:
        engine: handed over; nobody else may touch it while the thread runs.
        emit: called on this thread with a coordinator's id and its events.
        threads: compute threads of the engine.
        on_failure: called on this thread when a step raises; the thread ends then.
    """

    def __init__(
        self,
        engine: Engine,
        emit: Callable[[str, list[Event]], None],
        threads: int,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._engine = engine
        self._emit = emit
        self._threads = threads
        self._on_failure = on_failure
        self._inbox: queue.SimpleQueue[tuple[Command | DropCoordinator | _Stop, ...]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._last_progress = time.monotonic()
        self._last_check = self._last_progress
        # When the work under way began: commands that came together, or a step. None while it waits.
        self._busy_since: float | None = None

    def start(self) -> None:
        self._thread.start()

    def post(self, *items: Command | DropCoordinator) -> None:
        """Hands over commands; never waits. Commands of one caller keep their order, and those handed
        over together are applied together: no step begins between them, so a cohort is one step."""
        self._inbox.put(items)

    def stuck_seconds(self) -> float:
        """Since the last step or command ended, while there is work; for other threads."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    def stop(self) -> None:
        """Ends the thread after the running step."""
        self._inbox.put((_Stop(),))
        self._thread.join()

    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        try:
            while self._take_commands():
                if self._engine.has_work():
                    self._step()
        except BaseException as error:
            log.exception("the engine has failed")
            self._on_failure(error)

    def _take_commands(self) -> bool:
        """Applies what is in the inbox by now; waits while there is no work. False to end.

        What comes in meanwhile is for after the next step: a flood keeps nobody from it.
        """
        for _ in range(max(self._inbox.qsize(), 1)):
            has_work = self._engine.has_work()
            self._busy_since = time.monotonic() if has_work else None
            try:
                items = self._inbox.get(block=not has_work)
            except queue.Empty:
                return True
            self._busy_since = time.monotonic()
            for item in items:
                if isinstance(item, _Stop):
                    return False
                if isinstance(item, DropCoordinator):
                    self._engine.drop_coordinator(item.coordinator_id)
                elif events := self._engine.apply(item):
                    self._emit(item.address.key.coordinator_id, events)
        return True

    def _step(self) -> None:
        self._busy_since = time.monotonic()
        before = self._engine.num_steps
        by_coordinator: dict[str, list[Event]] = {}
        for event in self._engine.step():
            assert not isinstance(event, Progress)
            by_coordinator.setdefault(event.address.key.coordinator_id, []).append(event)
        for coordinator_id, events in by_coordinator.items():
            self._emit(coordinator_id, events)
        if self._engine.num_steps == before:
            time.sleep(STARVED_SECONDS)
        self._report_progress()
        if not self._engine.has_work():
            self._check_integrity()

    def _check_integrity(self) -> None:
        now = time.monotonic()
        if now - self._last_check >= INTEGRITY_SECONDS:
            self._last_check = now
            self._engine.requests.check_integrity()

    def _report_progress(self) -> None:
        now = time.monotonic()
        if now - self._last_progress < PROGRESS_SECONDS:
            return
        self._last_progress = now
        pool = self._engine.pool
        held = pool.num_pages - pool.num_available
        progress = Progress(self._engine.num_steps, self._engine.queued_rows(), held, pool.num_cached)
        for coordinator_id in {s.key.coordinator_id for s in self._engine.requests.all()}:
            self._emit(coordinator_id, [progress])
