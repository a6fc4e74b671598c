"""Replicas of the three services as supervised processes, each model service behind a proxy.

Unlike `local_stack` there may be several of each, and they know one another by the proxies' addresses, so
that whoever holds the fleet sees every round on its way.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from deploy.bench.fault_proxy import ServiceProxy
from deploy.bench.fault_watch import Pulse, Watch
from deploy.child import Child, Command, Ready, command_at
from deploy.local import STARTUP_SECONDS, StackOptions
from deploy.supervision import RestartPolicy, Supervised, keep_alive
from protos.errors import Unavailable

T = TypeVar("T")
Say = Callable[[str], None]


@dataclass(frozen=True)
class FleetOptions:
    """What to start.

    Args:
        services: how each service is started.
        policy: when one that ended or hangs is started again.
        coordinator_environment: settings of the coordinators.
    """

    services: StackOptions
    policy: RestartPolicy
    num_targets: int = 1
    num_drafters: int = 1
    num_coordinators: int = 2
    coordinator_environment: Mapping[str, str] = field(default_factory=dict)

    def command(self, kind: str) -> Command:
        """Of a model service."""
        command = self.services.target_command() if kind == "target" else self.services.draft_command()
        assert command is not None, "a fleet has drafters"
        return command


@dataclass(eq=False)
class Member:
    """One process, also after it was started again; a coordinator has no proxy and no watch."""

    name: str
    child: Child
    ready: Ready
    proxy: ServiceProxy | None = None
    watch: Watch | None = None
    num_restarts: int = 0


class Fleet:
    """Members by name: target-1, .., draft-1, .., coordinator-1, ..; `pulse` beats with every change."""

    def __init__(self, options: FleetOptions, say: Say) -> None:
        self.members: dict[str, Member] = {}
        self.pulse = Pulse()
        self._options = options
        self._say = say
        self._keepers: list[asyncio.Task[Unavailable]] = []
        self._pipe = os.pipe()

    def named(self, kind: str) -> list[Member]:
        """Of one kind: "target", "draft" or "coordinator"."""
        return [member for name, member in self.members.items() if name.startswith(kind)]

    @property
    def coordinators(self) -> list[str]:
        """Their addresses."""
        return [member.ready.address for member in self.named("coordinator")]

    def watches(self, *names: str) -> list[Watch]:
        """Of these members, or of all that have one."""
        members = [self.members[name] for name in names] if names else self.members.values()
        return [member.watch for member in members if member.watch is not None]

    def counts(self) -> Counter[str]:
        """Messages that have passed, by kind."""
        return sum((watch.counts for watch in self.watches()), Counter())

    def signal(self, names: Sequence[str], number: signal.Signals) -> None:
        """Sends a signal to each."""
        for name in names:
            os.kill(self.members[name].ready.pid, number)

    async def guard(self, work: Awaitable[T]) -> T:
        """Does the work, or stops it and raises when a member is given up.

        Raises:
            Unavailable: it failed too often in a row.
        """
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, *self._keepers}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise next(keeper for keeper in self._keepers if keeper.done()).result()
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def start(self) -> None:
        """Models first, all at once; then the coordinators, one after the other."""
        kinds = {"target": self._options.num_targets, "draft": self._options.num_drafters}
        async with asyncio.TaskGroup() as group:
            for kind, count in kinds.items():
                for number in range(1, count + 1):
                    group.create_task(self._start_model(kind, number))
        self.members = dict(sorted(self.members.items()))
        proxied = {kind: [m.proxy.address for m in self.named(kind) if m.proxy] for kind in kinds}
        addresses = ("--target-address", ",".join(proxied["target"]))
        flags = (*addresses, "--draft-address", ",".join(proxied["draft"]))
        environment = self._options.coordinator_environment
        command = Command("coordinator", (*flags, *self._options.services.coordinator_flags), 1)
        for number in range(1, self._options.num_coordinators + 1):
            await self._start(f"coordinator-{number}", replace(command, environment=environment))
        self._keepers = [asyncio.create_task(self._keep(member)) for member in self.members.values()]

    async def stop(self) -> None:
        """Coordinators first."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        os.close(self._pipe[0])
        for member in self.members.values():
            await asyncio.shield(member.child.stop())
            if member.proxy is not None:
                await member.proxy.stop()
        os.close(self._pipe[1])

    async def _start_model(self, kind: str, number: int) -> None:
        member = await self._start(f"{kind}-{number}", self._options.command(kind))
        member.watch = Watch(kind == "target", self.pulse.beat)
        member.proxy = ServiceProxy(member.watch)
        member.proxy.upstream = member.ready.address
        await member.proxy.start()

    async def _start(self, name: str, command: Command) -> Member:
        child, ready = await self._launch(command)
        self.members[name] = Member(name, child, ready)
        self._say(f"{name}: ready at {ready.address}, pid {ready.pid}")
        return self.members[name]

    async def _launch(self, command: Command) -> tuple[Child, Ready]:
        child = await Child.start(command, self._pipe[0], lambda *_: None)
        try:
            return child, await child.ready(STARTUP_SECONDS)
        except BaseException:
            await asyncio.shield(child.stop(0.0))
            raise

    async def _keep(self, member: Member) -> Unavailable:
        async def restart(_old: Child, ready: Ready) -> tuple[Child, Ready]:
            await member.child.stop(0.0)
            return await self._launch(command_at(member.child.command, ready))

        def on_restart(ready: Ready) -> None:
            member.child, member.ready = service.child, ready
            member.num_restarts += 1
            self.pulse.beat()

        service = Supervised(member.child, member.ready, restart, on_restart)
        return await keep_alive(service, self._options.policy, lambda line: self._say(f"  {line}"))


@contextlib.asynccontextmanager
async def fleet(options: FleetOptions, say: Say = lambda _: None) -> AsyncIterator[Fleet]:
    """A fleet that is ready; stopped at the end.

    Raises:
        Unavailable: a member did not start.
    """
    started = Fleet(options, say)
    try:
        try:
            await started.start()
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        yield started
    finally:
        await started.stop()
