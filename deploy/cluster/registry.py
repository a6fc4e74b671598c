"""Which replicas there are and where they listen, and that every coordinator is told."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from deploy.cluster.host import HostStatus
from deploy.cluster.members import Fleet, Member, Operator
from deploy.cluster.plan import Actor, Kind, plan
from deploy.cluster.spec import ClusterSpec
from protos import coordinator_pb2 as pb
from protos.errors import DliteError

log = logging.getLogger("dlite.cluster")
TICK_SECONDS = 0.5


class Registry:
    """The members of a cluster. Use on one event loop; `run` keeps coordinators informed.

    It keeps nothing that it could not ask for again: after a restart it finds its members by name.

    Args:
        spec: what the placement group was made for.
    """

    def __init__(self, spec: ClusterSpec, fleet: Fleet, operator: Operator) -> None:
        self.spec = spec
        self.members: dict[str, Member] = {}
        self._fleet = fleet
        self._operator = operator
        self._bundles = [(actor.kind, actor.bundle) for actor in plan(spec).actors]
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
        return sorted(found, key=lambda member: number_of(member.actor.name))

    def endpoints(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Addresses of targets and of drafters that have served and shall be used."""

        def of(kind: Kind) -> tuple[str, ...]:
            return tuple(m.status.address for m in self.of(kind) if m.status.address and m.is_used)

        return of("target"), of("draft")

    def register(self, actor: Actor, status: HostStatus) -> None:
        """A service serves, the first time or again. An actor that did not answer while this process started
        is found now."""
        member = self.members.setdefault(actor.name, Member(actor))
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

    async def seen(self) -> dict[str, pb.ListReplicasResponse]:
        """Replicas as each coordinator sees them, by its name; one that does not answer is left out."""

        async def ask(member: Member) -> pb.ListReplicasResponse | None:
            try:
                return await self._operator.list_replicas(member.status.address)
            except DliteError:
                return None

        members = [member for member in self.of("coordinator") if member.status.address]
        answers = await asyncio.gather(*(ask(member) for member in members))
        return {m.actor.name: found for m, found in zip(members, answers, strict=True) if found is not None}


def number_of(name: str) -> int:
    """The number in a member's name."""
    return int(name.rpartition("-")[2])
