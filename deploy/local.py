"""The three services as child processes of this one, on free ports of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from deploy.child import Child, Command, Ready, command_at
from deploy.supervision import RestartPolicy, Supervised, keep_alive
from protos.errors import Unavailable

T = TypeVar("T")
STARTUP_SECONDS = 300.0


@dataclass(frozen=True)
class StackOptions:
    """What to start.

    Args:
        target: model folder.
        drafter: draft checkpoint folder; None starts no draft service (proposals by lookup only).
        target_flags, draft_flags, coordinator_flags: more options of each service's command.
        draft_replay: start the replay drafter with `draft_flags` alone. For tests and benchmarks.
        target_threads, draft_threads: compute threads of each service.
        environment: variables of the models' processes beside this process's own.
    """

    target: Path
    drafter: Path | None = None
    target_flags: tuple[str, ...] = ()
    draft_flags: tuple[str, ...] = ()
    coordinator_flags: tuple[str, ...] = ()
    draft_replay: bool = False
    target_threads: int = 1
    draft_threads: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)

    def target_command(self) -> Command:
        flags = ("--target", str(self.target), "--threads", str(self.target_threads), *self.target_flags)
        return Command("target", flags, self.target_threads, environment=self.environment)

    def draft_command(self) -> Command | None:
        threads = ("--threads", str(self.draft_threads))
        if self.draft_replay:
            return self._draft((*threads, *self.draft_flags))
        if self.drafter is None:
            return None
        models = ("--drafter", str(self.drafter), "--target", str(self.target))
        return self._draft((*models, *threads, *self.draft_flags))

    def _draft(self, flags: tuple[str, ...]) -> Command:
        return Command("draft", flags, self.draft_threads, environment=self.environment)

    def coordinator_command(self, target: Ready, draft: Ready | None) -> Command:
        addresses = ["--target-address", target.address]
        if draft is not None:
            addresses += ["--draft-address", draft.address]
        return Command("coordinator", (*addresses, *self.coordinator_flags), 1)


# Starts a command as the child of this number, or as a new one, and waits until it is ready.
Starter = Callable[[Command, int | None], Awaitable[tuple[Child, Ready]]]


async def _cannot_start(command: Command, _index: int | None) -> tuple[Child, Ready]:
    raise Unavailable(f"{command.name} cannot be started again here")


@dataclass
class LocalStack:
    """The running services. `draft` is None without a draft service."""

    coordinator: Ready
    target: Ready
    draft: Ready | None
    _children: list[Child] = field(repr=False)
    _start: Starter = field(repr=False, default=_cannot_start)

    async def first_failure(self) -> Exception:
        """Waits until a child ends by itself."""
        waits = [asyncio.create_task(child.failure()) for child in self._children]
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            for wait in waits:
                wait.cancel()

    async def guard(self, work: Awaitable[T]) -> T:
        """Does the work, or stops it and raises as soon as a child ends.

        Raises:
            Unavailable: a child ended; carries its last lines of stderr.
        """
        task = asyncio.ensure_future(work)
        failure = asyncio.create_task(self.first_failure())
        try:
            await asyncio.wait({task, failure}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise failure.result()
        finally:
            task.cancel()
            failure.cancel()
            await asyncio.gather(task, failure, return_exceptions=True)

    async def supervise(self, policy: RestartPolicy, say: Callable[[str], None]) -> Unavailable:
        """Keeps every service alive on its address; returns how the first one ended that is given up."""
        keepers = [
            asyncio.create_task(keep_alive(self._supervised(index), policy, say))
            for index in range(len(self._children))
        ]
        try:
            done, _ = await asyncio.wait(keepers, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)

    def _supervised(self, index: int) -> Supervised:
        child = self._children[index]

        async def restart(_old: Child, ready: Ready) -> tuple[Child, Ready]:
            # In the place of the old one, also while it is not ready: the stop reaches it there.
            await self._children[index].stop(0.0)
            return await self._start(command_at(child.command, ready), index)

        def on_restart(ready: Ready) -> None:
            setattr(self, child.name, ready)

        return Supervised(child, getattr(self, child.name), restart, on_restart)

    def pids(self) -> dict[str, int]:
        """Process ids by service name."""
        pids = {"coordinator": self.coordinator.pid, "target": self.target.pid}
        return pids if self.draft is None else {**pids, "draft": self.draft.pid}


@contextlib.asynccontextmanager
async def local_stack(
    options: StackOptions, say: Callable[[str], None] = lambda _: None, *, verbose: bool = False
) -> AsyncIterator[LocalStack]:
    """Starts the services, yields when all are ready, stops them in order at the end.

    Target and drafter load at the same time; the coordinator starts when both serve.

    Args:
        say: takes lines of progress.
        verbose: also say every line of the children's stderr.

    Raises:
        Unavailable: a service did not start; carries its last lines of stderr.
    """

    def on_line(name: str, line: str) -> None:
        if verbose:
            say(f"{name}: {line}")

    read_end, write_end = os.pipe()
    children: list[Child] = []

    async def start(command: Command, index: int | None = None) -> tuple[Child, Ready]:
        started = asyncio.get_running_loop().time()
        child = await Child.start(command, read_end, on_line)
        if index is None:
            children.append(child)
        else:
            children[index] = child
        say(f"{command.name}: starting (pid {child.pid}, {command.num_threads} threads)")
        ready = await child.ready(STARTUP_SECONDS)
        seconds = asyncio.get_running_loop().time() - started
        say(f"{command.name}: ready at {ready.address} after {seconds:.1f} s")
        return child, ready

    try:
        target, draft = await _start_models(options, start)
        _, coordinator = await start(options.coordinator_command(target, draft))
        yield LocalStack(coordinator, target, draft, children, start)
    finally:
        os.close(read_end)
        try:
            for child in reversed(children):  # the coordinator first: it drains its requests
                await asyncio.shield(child.stop())
        finally:
            os.close(write_end)  # whatever still runs ends by itself


async def _start_models(
    options: StackOptions, start: Callable[[Command], Coroutine[Any, Any, tuple[Child, Ready]]]
) -> tuple[Ready, Ready | None]:
    draft_command = options.draft_command()
    try:
        async with asyncio.TaskGroup() as group:
            target = group.create_task(start(options.target_command()))
            draft = group.create_task(start(draft_command)) if draft_command else None
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return target.result()[1], draft.result()[1] if draft else None
