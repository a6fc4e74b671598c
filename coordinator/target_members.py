"""Which targets a coordinator has: they come, go and drain. All serve one model, that of the first.

Everything here is called on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence

from coordinator.bounds import limits_of
from coordinator.membership import bring_about
from coordinator.pair import Services
from coordinator.pairing import check_same_model
from coordinator.ports import TargetPort
from coordinator.target_replica import TargetReplica, TargetStream
from coordinator.tuner.explain import Explanation
from coordinator.tuner.tuner import Decision
from protos import common_pb2
from protos import coordinator_pb2 as pb
from protos.errors import InvalidRequest

log = logging.getLogger("dlite.links")

# Makes the port of an address; the function it is given is called whenever its connection comes or goes.
Connect = Callable[[str, Callable[[bool], None]], TargetPort]
# The first target that is named says which model is served; the others give it so long to speak first.
_FIRST_SECONDS = 1.0
_LOOK_SECONDS = 0.5


class TargetMembers:
    """The targets of one coordinator.

    Args:
        drain_seconds: how long texts may stay at a target that goes.
        now: seconds, monotonic.
    """

    def __init__(
        self, connect: Connect, drain_seconds: float = 5.0, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._connect = connect
        self._drain_seconds = drain_seconds
        self._now = now
        self._replicas: dict[str, TargetReplica] = {}
        self._model: common_pb2.Describe | None = None
        self._make_services: Callable[[TargetPort], Services] | None = None
        self._unstarted: list[TargetStream] = []
        self._changed = asyncio.Event()
        self._watchers: list[Callable[[], None]] = []
        self._leaving: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[TargetReplica]:
        return iter(tuple(self._replicas.values()))

    def __len__(self) -> int:
        return len(self._replicas)

    def bind(self, make_services: Callable[[TargetPort], Services]) -> None:
        """Says what belongs to each target, before any text comes."""
        self._make_services = make_services
        for replica in self:
            replica.services = make_services(replica.port)

    def watch(self, on_change: Callable[[], None]) -> None:
        """Calls this now, and whenever a target comes or goes."""
        self._watchers.append(on_change)
        on_change()

    @property
    def is_connected(self) -> bool:
        """Whether any of them is."""
        return any(replica.port.is_connected for replica in self)

    @property
    def num_serving(self) -> int:
        return sum(replica.is_serving for replica in self)

    @property
    def can_come_back(self) -> bool:
        """Whether waiting for a target may help."""
        return any(replica.stream is not None for replica in self)

    @property
    def describe(self) -> common_pb2.Describe:
        """The model, with the limits of the roomiest target that is there. Known once any was."""
        there = [replica.port.describe for replica in self if replica.port.is_connected]
        if there:
            return max(there, key=lambda describe: limits_of(describe).max_length)
        assert self._model is not None, "no target was ever connected"
        return self._model

    @property
    def links(self) -> dict[str, TargetStream]:
        """By address."""
        return {replica.address: replica.stream for replica in self if replica.stream is not None}

    def busiest(self, address: str = "") -> TargetReplica:
        """The target with the most texts, or the one at this address.

        Raises:
            InvalidRequest: there is no such target.
        """
        found = [replica for replica in self if address in ("", replica.address)]
        if not found:
            raise InvalidRequest(f"there is no target {address!r}", field="target_address")
        return max(found, key=lambda replica: replica.num_texts)

    def decisions(self) -> dict[str, Decision | None]:
        """What each target's tuner has decided last."""
        return {replica.address: replica.services.cohorts.decision for replica in self}

    def explain(self, address: str) -> tuple[str, Explanation | None]:
        """What the tuner of a target believes, and which target that is (see `busiest`)."""
        replica = self.busiest(address)
        return replica.address, replica.services.cohorts.tuner.explain()

    def kv_stats(self) -> pb.KvStats | None:
        """Of all of them together; None when none has said anything of late."""
        found = [stats for link in self.links.values() if (stats := link.kv_stats()) is not None]
        if not found:
            return None
        return pb.KvStats(
            pages_held=sum(stats.pages_held for stats in found),
            pages_cached=sum(stats.pages_cached for stats in found),
            num_pages=sum(stats.num_pages for stats in found),
        )

    def replicas(self) -> list[pb.Replica]:
        """All that are there, those that drain included."""
        return [replica.status for replica in self]

    def set_addresses(self, addresses: Sequence[str]) -> None:
        """From now on these are the targets. New ones are connected, those that are missing drain."""
        bring_about(addresses, self._replicas, self._add, self._drain)
        self.note_change()

    async def wait_connected(self, timeout_seconds: float) -> bool:
        """Waits until any target is there; False when the time is over."""
        give_up = self._now() + timeout_seconds
        while not self.is_connected and (seconds := give_up - self._now()) > 0:
            await self.wait_change(seconds)
        return self.is_connected

    async def wait_change(self, timeout_seconds: float) -> None:
        """Waits until a target comes or goes or a text leaves one, or the time is over."""
        changed = self._changed
        try:
            async with asyncio.timeout(timeout_seconds):
                await changed.wait()
        except TimeoutError:
            return

    def note_change(self) -> None:
        """Wakes those who wait for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def stop(self) -> None:
        """Ends all streams with an end frame."""
        for replica in self:
            if replica.drain is not None:
                replica.drain.cancel()
        await asyncio.gather(*(link.stop() for link in self.links.values()), *self._leaving)

    def _add(self, address: str) -> None:
        replica: TargetReplica

        def on_change(is_connected: bool) -> None:
            if not is_connected:
                replica.breaker.trip()
            self.note_change()
            for watcher in self._watchers:
                watcher()

        replica = TargetReplica(address, self._connect(address, on_change), self._now)
        self._replicas[address] = replica
        if self._make_services is not None:
            replica.services = self._make_services(replica.port)
        stream = replica.stream
        if stream is None:
            return
        stream.require(self._accept)
        if self._model is not None or len(self) == 1:
            stream.start()
            return
        if not self._unstarted:
            asyncio.get_running_loop().call_later(_FIRST_SECONDS, self._start_others)
        self._unstarted.append(stream)

    def _accept(self, describe: common_pb2.Describe) -> None:
        """Takes a target that has answered. Raises ContractMismatch when it is another model."""
        if self._model is None:
            self._model = describe
            self._start_others()
        check_same_model(self._model, describe)

    def _start_others(self) -> None:
        unstarted, self._unstarted = self._unstarted, []
        for stream in unstarted:
            stream.start()

    async def _drain(self, replica: TargetReplica) -> None:
        """Lets its texts end, sends away those that take too long, and takes it out; while no other
        target serves it stays what there is."""
        until = self._now() + self._drain_seconds
        while True:
            has_others = self.num_serving > 0
            if has_others and not replica.num_texts:
                break
            if has_others and self._now() >= until:
                replica.send_away("the target is taken out")
            await self.wait_change(max(until - self._now(), _LOOK_SECONDS))
        del self._replicas[replica.address]
        self.note_change()
        if replica.stream is not None:
            leaving = asyncio.create_task(replica.stream.stop(), name="end a target's stream")
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)


def members_of(*ports: TargetPort) -> TargetMembers:
    """Targets in this process, with names instead of addresses."""
    named = {f"target-{index}": port for index, port in enumerate(ports)}
    members = TargetMembers(lambda address, _: named[address])
    members.set_addresses(list(named))
    return members
