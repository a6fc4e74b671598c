"""One service that is kept alive as a child of an actor. Knows nothing of Ray."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Literal

from deploy.child import STOP_GRACE_SECONDS, Child, Command, Ready, command_at
from deploy.supervision import Backoff, RestartPolicy, Supervised, keep_alive
from protos.errors import Unavailable

STARTUP_SECONDS = 600.0
LOG_LINES = 1000
# An actor never gives its service up: what ails it may end, as a kubelet thinks too.
FOREVER = RestartPolicy(max_failures=2**31)

HostState = Literal["starting", "serving", "failing", "stopped"]


@dataclass(frozen=True)
class HostStatus:
    """What a host knows of its service.

    Args:
        address, admin_address: empty before it served.
        num_starts: of the process, in this actor.
        error: how it ended the last time.
    """

    state: HostState = "starting"
    address: str = ""
    admin_address: str = ""
    pid: int = 0
    num_starts: int = 0
    error: str = ""


class ServiceHost:
    """Starts a service, and starts it again when it ends or hangs, on its address, with back-off.

    Args:
        make_command: called before each start, since the addresses it names change.
        on_ready: told each time the service serves.
        say: takes lines of progress, and every line of the service's stderr.
    """

    def __init__(
        self,
        make_command: Callable[[], Awaitable[Command]],
        on_ready: Callable[[HostStatus], Awaitable[None]],
        say: Callable[[str], None] = lambda _: None,
        policy: RestartPolicy = FOREVER,
    ) -> None:
        self._make_command = make_command
        self._on_ready = on_ready
        self._say = say
        self._policy = policy
        self._lines: deque[str] = deque(maxlen=LOG_LINES)
        self._child: Child | None = None
        # The child reads the one end, and ends with this process, which holds the other.
        self._parent_pipe, self._held = os.pipe()
        self.status = HostStatus()

    def last_lines(self, count: int) -> list[str]:
        """Of the service's stderr, of all its processes."""
        return list(self._lines)[-count:]

    async def run(self) -> None:
        """Keeps the service alive until it is cancelled."""
        backoff = Backoff(self._policy)
        while True:
            try:
                child, ready = await self._start(None)
                break
            except Unavailable as error:
                await asyncio.sleep(self._failed(error, backoff))

        async def restart(old: Child, before: Ready) -> tuple[Child, Ready]:
            await old.stop(0.0)
            return await self._start(before)

        service = Supervised(child, ready, restart, lambda _: None)
        failure = await keep_alive(service, self._policy, self._log)
        self.status = replace(self.status, state="failing", error=failure.message)

    async def stop(self, grace_seconds: float = STOP_GRACE_SECONDS) -> None:
        """Ends the service, once; call it when `run` is cancelled."""
        if self._child is not None:
            await self._child.stop(grace_seconds)
        os.close(self._held)  # one that had only just been started ends by itself
        os.close(self._parent_pipe)
        self.status = replace(self.status, state="stopped")

    def _failed(self, error: Unavailable, backoff: Backoff) -> float:
        pause = backoff.pause_after(0.0)
        assert pause is not None, "the policy has no end"
        self.status = replace(self.status, state="failing", error=error.message)
        self._log(f"{error.message.splitlines()[0]}: starting again in {pause:g} s")
        return pause

    async def _start(self, before: Ready | None) -> tuple[Child, Ready]:
        """A new process, on the addresses of the one before."""
        command = await self._make_command()
        if before is not None:
            command = command_at(command, before)
        self._child = child = await Child.start(command, self._parent_pipe, self._on_line)
        num_starts = self.status.num_starts + 1
        self.status = replace(self.status, state="starting", pid=child.pid, num_starts=num_starts)
        try:
            ready = await child.ready(STARTUP_SECONDS)
        except Unavailable as error:
            await child.stop(0.0)
            self.status = replace(self.status, state="failing", error=error.message)
            raise
        self.status = HostStatus(
            "serving", ready.address, ready.admin_address, ready.pid, num_starts, self.status.error
        )
        await self._on_ready(self.status)
        return child, ready

    def _on_line(self, _name: str, line: str) -> None:
        self._log(line)

    def _log(self, line: str) -> None:
        self._lines.append(line)
        self._say(line)
