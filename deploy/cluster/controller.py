"""Changes of a cluster: more replicas, fewer, other ones."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Sequence

from deploy.cluster.members import Changes, Fleet, Member, Operator
from deploy.cluster.plan import KINDS, Actor, Kind, part_of, plan, replica
from deploy.cluster.registry import Registry, number_of
from deploy.cluster.spec import ClusterSpec
from protos.errors import Busy, InvalidRequest, NotFound, TimedOut

POLL_SECONDS = 0.5
DRAIN_SECONDS = 60.0


class Controller(Registry):
    """A registry whose members can be changed, by one caller at a time."""

    def __init__(self, spec: ClusterSpec, fleet: Fleet, operator: Operator) -> None:
        super().__init__(spec, fleet, operator)
        self._changing = asyncio.Lock()
        self._long_change = ""

    @contextlib.asynccontextmanager
    async def change(self, what: str = "") -> AsyncIterator[None]:
        """One change after the other.

        Args:
            what: of a change that takes minutes; others are refused meanwhile.

        Raises:
            Busy: such a change is under way.
        """
        if self._long_change:
            raise Busy(f"{self._long_change} is under way")
        async with self._changing:
            self._long_change = what
            try:
                yield
            finally:
                self._long_change = ""

    async def apply(self, spec: ClusterSpec, *, dry_run: bool = False) -> Changes:
        """Makes the cluster what a file says. What runs as the file says is left alone."""
        async with self.change():
            created: list[Actor] = []
            leaving: list[Member] = []
            kept: list[str] = []
            differing: list[str] = []
            for kind in KINDS:
                wanted = plan(spec).of(kind)
                members = self.of(kind)
                same = [m for m in members if wanted and m.actor.does == wanted[0].does]
                differing += [m.actor.name for m in members if m not in same]
                if members and not same:  # to be swapped, not doubled
                    spec = spec.model_copy(update={kind: part_of(self.spec, kind)})
                    continue
                kept += [m.actor.name for m in same[: len(wanted)]]
                leaving += same[len(wanted) :]
                created += self.new(spec, kind, len(wanted) - len(same))
            if not dry_run:
                await self.remember(spec)
                await asyncio.gather(*(self.add(actor) for actor in created))
                await self.leave(leaving)
            return Changes(
                [a.name for a in created], [m.actor.name for m in leaving], sorted(kept), differing
            )

    async def remember(self, spec: ClusterSpec) -> None:
        """What the cluster shall be from now on."""
        self.spec = spec
        await self._fleet.remember(spec.model_dump_json())

    async def scale(self, kind: Kind, count: int) -> Changes:
        """Adds replicas, or takes the last ones away when they are drained.

        Raises:
            InvalidRequest: fewer than one target or coordinator, or no such service in the file.
        """
        if count < (0 if kind == "draft" else 1):
            raise InvalidRequest(f"{count} replicas of {kind}: at least one", field="--replicas")
        async with self.change():
            members = self.of(kind)
            created = self.new(self.spec, kind, count - len(members))
            await asyncio.gather(*(self.add(actor) for actor in created))
            leaving = members[count:]
            await self.leave(leaving)
        kept = [m.actor.name for m in members[:count]]
        return Changes([a.name for a in created], [m.actor.name for m in leaving], kept, [])

    async def drain(self, name: str) -> None:
        """Takes one replica away: no new work, what runs moves or finishes, then its actor ends.

        Raises:
            NotFound: no such replica.
            InvalidRequest: it is the last target or coordinator.
        """
        async with self.change():
            member = self.members.get(name)
            if member is None:
                raise NotFound(f"no replica {name!r}; there are: {', '.join(sorted(self.members))}")
            if member.actor.kind != "draft" and len(self.of(member.actor.kind)) == 1:
                raise InvalidRequest(f"{name} is the last {member.actor.kind}: add another first")
            await self.leave([member])

    async def wait_serving(self, names: Sequence[str], timeout_seconds: float) -> None:
        """Until these members serve.

        Raises:
            TimedOut: they do not; says what each lacks.
        """
        deadline = time.monotonic() + timeout_seconds
        while waiting := [
            m for name in names if (m := self.members.get(name)) and m.status.state != "serving"
        ]:
            if time.monotonic() > deadline:
                told = "; ".join(f"{m.actor.name}: {m.status.error or m.status.state}" for m in waiting)
                raise TimedOut(f"not serving after {timeout_seconds:g} s: {told}")
            await asyncio.sleep(POLL_SECONDS)
            await self.refresh()
        await self.announce()

    async def end_all(self) -> None:
        """Ends every actor, the coordinators first: they let running texts finish."""
        async with self.change():
            for kinds in (("coordinator",), ("target", "draft")):
                members = [m for m in self.members.values() if m.actor.kind in kinds]
                for member in members:
                    member.is_leaving = True
                await self._end(members)

    def new(self, spec: ClusterSpec, kind: Kind, count: int) -> list[Actor]:
        """Replicas with the lowest free numbers, in free places of the placement group while there are."""
        numbers = {number_of(member.actor.name) for member in self.of(kind, leaving=True)}
        taken = {member.actor.bundle for member in self.members.values()}
        places = [bundle for of, bundle in self._bundles if of == kind and bundle not in taken]
        free = (number for number in itertools.count() if number not in numbers)
        return [
            replica(spec, kind, next(free), places.pop(0) if places else None) for _ in range(max(count, 0))
        ]

    async def add(self, actor: Actor, *, is_used: bool = True) -> None:
        """A new member; coordinators are told of it when it serves, unless it is not to be used yet."""
        self.members[actor.name] = Member(actor, is_used=is_used)
        await self._fleet.create(actor)

    async def leave(self, members: Sequence[Member]) -> None:
        """Tells the coordinators, waits until nobody uses these any more (or for so long), ends them."""
        if not members:
            return
        for member in members:
            member.is_leaving = True
        await self.announce()
        addresses = {m.status.address for m in members if m.actor.kind != "coordinator"} - {""}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._until_unused(addresses)
        await self._end(members)

    async def _until_unused(self, addresses: set[str]) -> None:
        """Until no coordinator names any of them."""
        while addresses:
            await self.announce()
            named = {each.address for found in (await self.seen()).values() for each in found.replicas}
            if not named & addresses:
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _end(self, members: Sequence[Member]) -> None:
        await asyncio.gather(*(self._fleet.end(member.actor.name) for member in members))
        for member in members:
            del self.members[member.actor.name]
