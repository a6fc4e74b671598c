"""An event loop in a thread of its own.

Channels and child processes belong to it, and to no loop that Ray makes (which may be a uvloop, whose
child processes need the main thread).
"""

from __future__ import annotations

import asyncio
import os
import threading
import traceback
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Starts at once. Its methods are for other threads."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self.loop.run_forever, name="dlite-loop", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout_seconds: float | None = None) -> T:
        """Waits for the result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_seconds)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs in the background for as long as the process lives. Its failure ends the process: an actor
        that lives and does nothing is worse than one that Ray starts again."""

        async def start() -> asyncio.Task[None]:
            task = asyncio.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(_end_process_on_failure)
            return task

        return self.run(start())

    def close(self) -> None:
        """Ends loop and thread; an actor's live as long as its process."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def cancel(self, task: asyncio.Task[None]) -> None:
        """Cancels a task of this loop and waits for its end."""
        task.cancel()
        await asyncio.wait({task})


def _end_process_on_failure(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        traceback.print_exception(error)
        os._exit(1)
