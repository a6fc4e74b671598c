"""Who is in a pool of drafters: replicas come, go and drain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterator, Sequence
from itertools import count
from weakref import WeakSet

from coordinator.membership import bring_about
from coordinator.question import Holder
from coordinator.standing import Replica, Standing
from coordinator.tuner.link_estimate import LinkEstimate
from protos import common_pb2
from protos import coordinator_pb2 as pb

# Makes the replica of an address; the function it is given is called whenever the replica changes.
Connect = Callable[[str, Callable[[], None]], Replica]


class Members:
    """The replicas of one pool.

    Args:
        drain_seconds: how long one that goes may keep what it has.
        now: seconds, the clock of the event loop.
    """

    def __init__(self, connect: Connect, drain_seconds: float, now: Callable[[], float]) -> None:
        self.describe: common_pb2.Describe | None = None
        self._connect = connect
        self._drain_seconds = drain_seconds
        self._now = now
        self._standings: dict[str, Standing] = {}
        self._of: dict[Holder, Standing] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._numbers = count()
        self._changed = asyncio.Event()
        self._estimates: WeakSet[LinkEstimate] = WeakSet()

    def __iter__(self) -> Iterator[Standing]:
        return iter(tuple(self._standings.values()))

    def __len__(self) -> int:
        return len(self._standings)

    def of(self, holder: Holder) -> Standing | None:
        """The standing of a replica; None when it has left."""
        return self._of.get(holder)

    def choose(self, without: Container[Holder] = ()) -> Standing | None:
        """The usable replica with the least outstanding work; None when there is no other."""
        if len(self._standings) == 1:
            # The way of every question where there is one drafter.
            (only,) = self._standings.values()
            return only if only.is_usable and only.replica not in without else None
        usable = [s for s in self if s.is_usable and s.replica not in without]
        return min(usable, key=lambda standing: standing.work, default=None)

    @property
    def is_usable(self) -> bool:
        """Whether anybody may be asked something new."""
        for standing in self._standings.values():  # noqa: SIM110 - asked several times a round
            if standing.is_usable:
                return True
        return False

    def set_addresses(self, addresses: Sequence[str]) -> None:
        """See `DraftPool`."""
        bring_about(addresses, self._standings, self._add, self._drain)
        self._note_change()

    def replicas(self) -> list[pb.Replica]:
        """All of them, those that drain as well."""
        return [standing.status for standing in self]

    @property
    def links(self) -> dict[str, Replica]:
        """By address."""
        return {standing.address: standing.replica for standing in self}

    @property
    def is_connected(self) -> bool:
        return any(s.drain is None and s.replica.is_connected for s in self)

    @property
    def refusal(self) -> str:
        return "; ".join(f"{s.address}: {s.replica.refusal}" for s in self if s.replica.refusal)

    async def wait_settled(self, timeout_seconds: float) -> bool:
        """Waits until one serves, or all are refused; False when the time is over."""
        try:
            async with asyncio.timeout(timeout_seconds):
                while not self.is_connected and not all(s.replica.refusal for s in self):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """Ends all streams with an end frame."""
        standings = list(self)
        for standing in standings:
            if standing.drain is not None:
                standing.drain.cancel()
        await asyncio.gather(*(standing.replica.stop() for standing in standings), *self._leaving)

    def measure_into(self, estimate: LinkEstimate) -> None:
        """See `DraftPool`."""
        self._estimates.add(estimate)
        for standing in self:
            standing.replica.measure_into(estimate)

    def _add(self, address: str) -> None:
        replica = self._connect(address, self._note_change)
        standing = Standing(address, next(self._numbers), replica, self._now)
        self._standings[address] = self._of[replica] = standing
        for estimate in self._estimates:
            replica.measure_into(estimate)
        replica.start()

    async def _drain(self, standing: Standing) -> None:
        """Waits for what the replica holds; then it is out of the pool, and its stream ends."""
        if held := list(standing.replica.pending):
            await asyncio.wait(held, timeout=self._drain_seconds)
        del self._standings[standing.address], self._of[standing.replica]
        leaving = asyncio.create_task(standing.replica.stop(), name="end a drafter's stream")
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    def _note_change(self) -> None:
        self._changed.set()
        staying = [standing for standing in self if standing.drain is None]
        serving = [s.replica.describe for s in staying if s.replica.is_connected and s.replica.describe]
        if serving:
            self.describe = _largest(serving)
        elif not staying:
            self.describe = None


def _largest(describes: Sequence[common_pb2.Describe]) -> common_pb2.Describe:
    """One of them, with the largest block and anchor group of all: each is asked for what it can do."""
    block = max(describe.block_size for describe in describes)
    group = max(describe.anchor_group_size for describe in describes)
    for describe in describes:
        if describe.block_size == block and describe.anchor_group_size == group:
            return describe
    largest = common_pb2.Describe(block_size=block, anchor_group_size=group)
    merged = common_pb2.Describe()
    merged.CopyFrom(describes[0])
    merged.MergeFrom(largest)
    return merged
