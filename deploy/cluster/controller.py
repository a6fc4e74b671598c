"""What a cluster's controller knows and does: which replicas there are, where they listen, who is told.

It keeps nothing that it could not ask for again: after a restart it finds its members by name.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Sequence
from dataclasses import replace

from deploy.cluster.host import HostStatus
from deploy.cluster.members import Changes, Fleet, Member, Operator, Replica
from deploy.cluster.plan import KINDS, Actor, Kind, part_of, plan, replica
from deploy.cluster.spec import ClusterSpec
from protos.errors import DliteError, InvalidRequest, NotFound, TimedOut

log = logging.getLogger("dlite.cluster")
TICK_SECONDS = 0.5
DRAIN_SECONDS = 60.0


class Controller:
    """Use on one event loop; `run` keeps coordinators informed."""

    def __init__(self, spec: ClusterSpec, fleet: Fleet, operator: Operator) -> None:
        self.spec = spec
        self._fleet = fleet
        self._operator = operator
        self.members: dict[str, Member] = {}
        self._bundles = [(actor.kind, actor.bundle) for actor in plan(spec).actors]
        self._changing = asyncio.Lock()
        self._wake = asyncio.Event()

    async def recover(self) -> None:
        """Takes up the description that was last applied, and the actors that are there already."""
        text = await self._fleet.remembered()
        if text is not None:
            self.spec = ClusterSpec.model_validate_json(text)
        for actor, status in await self._fleet.found():
            self.members[actor.name] = Member(actor, status)

    async def run(self) -> None:
        """Tells coordinators of every change, until cancelled."""
        while True:
            self._wake.clear()
            await self.announce()
            try:
                async with asyncio.timeout(TICK_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def of(self, kind: Kind, *, leaving: bool = False) -> list[Member]:
        """Members of one service, by number; those that leave only when asked for."""
        found = [m for m in self.members.values() if m.actor.kind == kind and (leaving or not m.is_leaving)]
        return sorted(found, key=lambda member: _number(member.actor.name))

    def endpoints(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Addresses of targets and of drafters that have served and stay."""
        targets, drafts = (
            tuple(m.status.address for m in self.of(kind) if m.status.address) for kind in ("target", "draft")
        )
        return targets, drafts

    def register(self, actor: Actor, status: HostStatus) -> None:
        """A service serves, the first time or again. An actor that is not known any more is not taken in."""
        member = self.members.get(actor.name)
        if member is None:
            log.warning("%s serves, but is none of the cluster", actor.name)
            return
        member.status, member.told = status, None
        self._wake.set()

    async def refresh(self) -> None:
        """Asks every actor how its service is."""

        async def ask(member: Member) -> None:
            status = await self._fleet.status(member.actor.name)
            # An address once known is kept: coordinators hold on to it until there is another.
            member.status = replace(status, address=status.address or member.status.address)

        await asyncio.gather(*(ask(member) for member in list(self.members.values())))

    async def announce(self) -> None:
        """Tells the coordinators that do not know them yet which replicas there are."""
        wanted = self.endpoints()
        if not wanted[0]:  # a coordinator without any target is none
            return
        late = [m for m in self.of("coordinator") if m.status.address and m.told != wanted]
        await asyncio.gather(*(self._tell(member, wanted) for member in late))

    async def _tell(self, member: Member, wanted: tuple[tuple[str, ...], tuple[str, ...]]) -> None:
        try:
            await self._operator.set_replicas(member.status.address, *wanted)
            member.told = wanted
        except DliteError as error:  # told again at the next tick
            log.warning("%s does not take its replicas: %s", member.actor.name, error.message)

    async def seen(self) -> dict[str, list[Replica]]:
        """Replicas as each coordinator sees them, by its name; one that does not answer is left out."""

        async def ask(member: Member) -> list[Replica] | None:
            try:
                return await self._operator.replicas(member.status.address)
            except DliteError:
                return None

        members = [member for member in self.of("coordinator") if member.status.address]
        answers = await asyncio.gather(*(ask(member) for member in members))
        return {m.actor.name: found for m, found in zip(members, answers, strict=True) if found is not None}

    async def apply(self, spec: ClusterSpec, *, dry_run: bool = False) -> Changes:
        """Makes the cluster what a file says. What runs as the file says is left alone."""
        async with self._changing:
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
                created += self._new(spec, kind, len(wanted) - len(same))
            if not dry_run:
                await self._remember(spec)
                await asyncio.gather(*(self._add(actor) for actor in created))
                await self._leave(leaving)
            return Changes(
                [a.name for a in created], [m.actor.name for m in leaving], sorted(kept), differing
            )

    async def _remember(self, spec: ClusterSpec) -> None:
        self.spec = spec
        await self._fleet.remember(spec.model_dump_json())

    async def scale(self, kind: Kind, count: int) -> Changes:
        """Adds replicas, or takes the last ones away when they are drained.

        Raises:
            InvalidRequest: fewer than one target or coordinator, or no such service in the file.
        """
        if count < (0 if kind == "draft" else 1):
            raise InvalidRequest(f"{count} replicas of {kind}: at least one", field="--replicas")
        async with self._changing:
            members = self.of(kind)
            created = self._new(self.spec, kind, count - len(members))
            await asyncio.gather(*(self._add(actor) for actor in created))
            leaving = members[count:]
            await self._leave(leaving)
        kept = [m.actor.name for m in members[:count]]
        return Changes([a.name for a in created], [m.actor.name for m in leaving], kept, [])

    async def drain(self, name: str) -> None:
        """Takes one replica away: no new work, what runs moves or finishes, then its actor ends.

        Raises:
            NotFound: no such replica.
            InvalidRequest: it is the last target or coordinator.
        """
        async with self._changing:
            member = self.members.get(name)
            if member is None:
                raise NotFound(f"no replica {name!r}; there are: {', '.join(sorted(self.members))}")
            if member.actor.kind != "draft" and len(self.of(member.actor.kind)) == 1:
                raise InvalidRequest(f"{name} is the last {member.actor.kind}: add another first")
            await self._leave([member])

    async def wait_serving(self, names: Sequence[str], timeout_seconds: float) -> None:
        """Until these members serve.

        Raises:
            TimedOut: they do not; says what each lacks.
        """
        deadline = time.monotonic() + timeout_seconds
        while waiting := [n for n in names if self.members[n].status.state != "serving"]:
            if time.monotonic() > deadline:
                told = "; ".join(f"{n}: {self.members[n].status.error or 'not placed'}" for n in waiting)
                raise TimedOut(f"not serving after {timeout_seconds:g} s: {told}")
            await asyncio.sleep(TICK_SECONDS)
            await self.refresh()
        await self.announce()

    async def end_all(self) -> None:
        """Ends every actor, the coordinators first: they let running texts finish."""
        async with self._changing:
            for kinds in (("coordinator",), ("target", "draft")):
                members = [m for m in self.members.values() if m.actor.kind in kinds]
                for member in members:
                    member.is_leaving = True
                await self._end(members)

    def _new(self, spec: ClusterSpec, kind: Kind, count: int) -> list[Actor]:
        """Replicas with the lowest free numbers, in free places of the placement group while there are."""
        numbers = {_number(member.actor.name) for member in self.of(kind, leaving=True)}
        taken = {member.actor.bundle for member in self.members.values()}
        places = [bundle for of, bundle in self._bundles if of == kind and bundle not in taken]
        free = (number for number in itertools.count() if number not in numbers)
        return [
            replica(spec, kind, next(free), places.pop(0) if places else None) for _ in range(max(count, 0))
        ]

    async def _add(self, actor: Actor) -> None:
        self.members[actor.name] = Member(actor)
        await self._fleet.create(actor)

    async def _leave(self, members: Sequence[Member]) -> None:
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
            named = {each.address for found in (await self.seen()).values() for each in found}
            if not named & addresses:
                return
            await asyncio.sleep(TICK_SECONDS)

    async def _end(self, members: Sequence[Member]) -> None:
        await asyncio.gather(*(self._fleet.end(member.actor.name) for member in members))
        for member in members:
            del self.members[member.actor.name]


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])
