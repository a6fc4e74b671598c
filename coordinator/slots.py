"""How many texts run at the target at once, and who waits for a place.

Each tenant has a queue of its own, first come first served. Whose head is next is said by deficit
round-robin: in turn, each tenant that waits is given credit for its weight, and starts requests as long
as they cost no more than its credit. So a tenant that floods waits behind itself.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from coordinator.tenants import NOBODY, TenantLimits
from protos.errors import Busy, InvalidRequest

_RETRY_SECONDS = 1.0
# Credit of a turn at weight 1, in tokens; small, so that turns are short and nobody waits for long.
QUANTUM_TOKENS = 64.0


@dataclass(frozen=True)
class Demand:
    """Whose request it is and what it may take: KV pages and tokens, all its texts together."""

    tenant: str = NOBODY
    num_pages: int = 0
    num_tokens: int = 1


class Place:
    """A request's place: granted at once, or when it is its turn. `leave` may be called at any time,
    and again."""

    def __init__(self, slots: Slots, num_texts: int, demand: Demand) -> None:
        self.num_texts = num_texts
        self.demand = demand
        self._slots = slots
        self._granted = asyncio.Event()

    @property
    def is_granted(self) -> bool:
        return self._granted.is_set()

    async def wait(self) -> None:
        """Waits until the request may start."""
        await self._granted.wait()

    def leave(self) -> None:
        """Gives the place up, granted or not."""
        self._slots._leave(self)

    def _grant(self) -> None:
        self._granted.set()


@dataclass(eq=False)
class _Line:
    """A tenant that waits or runs: its queue, its credit, what its granted places hold."""

    limits: TenantLimits
    queue: deque[Place] = field(default_factory=deque)
    credit: float = 0.0
    num_texts: int = 0
    num_pages: int = 0

    def add(self, place: Place, sign: int) -> None:
        self.num_texts += sign * place.num_texts
        self.num_pages += sign * place.demand.num_pages

    def may_start(self, num_texts: int, num_pages: int) -> bool:
        """Whether the tenant's own limits allow so much more."""
        max_running, max_pages = self.limits.max_running, self.limits.max_pages
        has_texts = max_running is None or self.num_texts + num_texts <= max_running
        return has_texts and (max_pages is None or self.num_pages + num_pages <= max_pages)

    @property
    def is_next(self) -> bool:
        """Whether its head may start, if there is a place."""
        return bool(self.queue) and self.may_start(self.queue[0].num_texts, self.queue[0].demand.num_pages)


class Slots:
    """Places for `capacity` texts at each target, and a queue for `max_waiting` requests of each tenant.

    Invariant: `num_used` is the sum over granted places, and nothing is granted beyond the capacity (which
    falls with a target that is lost); whoever's turn it is does not fit, or nobody waits who may run (so a
    request of many texts is not overtaken for ever).

    Args:
        capacity: of one target.
        limits_of: of a tenant.
    """

    def __init__(
        self,
        capacity: int,
        max_waiting: int,
        limits_of: Callable[[str], TenantLimits] = lambda _: TenantLimits(),
    ) -> None:
        self._capacity = self._capacity_of_one = capacity
        self._max_waiting = max_waiting
        self._limits_of = limits_of
        self._granted: set[Place] = set()
        # The first one's turn it is.
        self._lines: OrderedDict[str, _Line] = OrderedDict()

    @property
    def num_used(self) -> int:
        """Texts that may run."""
        return sum(place.num_texts for place in self._granted)

    @property
    def num_waiting(self) -> int:
        """Requests in the queues."""
        return sum(len(line.queue) for line in self._lines.values())

    def scale(self, num_targets: int) -> None:
        """From now on there are places for `capacity` texts at each of so many targets."""
        self._capacity = self._capacity_of_one * num_targets
        self._grant()

    def require_room(self, num_texts: int, tenant: str = NOBODY) -> None:
        """Refuses what cannot be queued, before any work is done for it.

        Raises:
            InvalidRequest: more texts than there can ever be places.
            Busy: the tenant's queue is full.
        """
        limits = self._limits_of(tenant)
        most = min(self._capacity_of_one, limits.max_running or self._capacity_of_one)
        if num_texts > most:
            raise InvalidRequest(
                f"{num_texts} choices, but at most {most} texts run at once: ask for fewer", field="n"
            )
        line = self._lines.get(tenant) or _Line(limits)
        has_place = self.num_used + num_texts <= self._capacity and not self._is_anyone_next()
        if has_place and not line.queue and line.may_start(num_texts, 0):
            return
        max_waiting = self._max_waiting if limits.max_waiting is None else limits.max_waiting
        num_waiting = len(line.queue)
        if num_waiting >= max_waiting:
            raise Busy(
                f"{self.num_used} texts are running, at most {self._capacity}; "
                f"{num_waiting} requests wait, at most {max_waiting}",
                retry_after_seconds=_RETRY_SECONDS,
            )

    def enter(self, num_texts: int, demand: Demand = Demand()) -> Place:
        """Takes a place, or queues for one.

        Raises:
            InvalidRequest: more texts or pages than there can ever be.
            Busy: the tenant's queue is full.
        """
        limits = self._limits_of(demand.tenant)
        if limits.max_pages is not None and demand.num_pages > limits.max_pages:
            raise InvalidRequest(
                f"prompt and answer may take {demand.num_pages} pages, the tenant has {limits.max_pages}: "
                "ask for fewer tokens",
                field="max_tokens",
            )
        self.require_room(num_texts, demand.tenant)
        line = self._lines.setdefault(demand.tenant, _Line(limits))
        place = Place(self, num_texts, demand)
        line.queue.append(place)
        self._grant()
        return place

    def _leave(self, place: Place) -> None:
        line = self._lines.get(place.demand.tenant)
        if line is None:
            return
        if place in self._granted:
            self._granted.remove(place)
            line.add(place, -1)
        elif place in line.queue:
            line.queue.remove(place)
        if not line.queue and not line.num_texts:
            del self._lines[place.demand.tenant]
        self._grant()

    def _is_anyone_next(self) -> bool:
        return any(line.is_next for line in self._lines.values())

    def _grant(self) -> None:
        while self._is_anyone_next():
            tenant, line = next(iter(self._lines.items()))
            if not line.is_next:
                self._lines.move_to_end(tenant)
                continue
            head = line.queue[0]
            if line.credit < head.demand.num_tokens:
                self._lines.move_to_end(tenant)
                line.credit += QUANTUM_TOKENS * line.limits.weight
                continue
            if self.num_used + head.num_texts > self._capacity:
                return
            line.credit -= head.demand.num_tokens
            line.add(head, 1)
            self._granted.add(line.queue.popleft())
            if not line.queue:
                line.credit = 0.0
            head._grant()
