"""The real services in this process with somebody in the middle of each stream; looks like a `Fleet`."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from coordinator.config import CoordinatorConfig
from coordinator.startup import RunningCoordinator, start_coordinator
from deploy.bench.fault_proxy import Middle, ServiceProxy
from deploy.bench.fault_watch import Pulse, Watch
from draft_service.loader import load_drafter
from draft_service.server import serve as serve_draft
from draft_service.service import DraftService
from target_service.service import serve as serve_target
from tests.fakes import GOLDEN
from tests.system.stack import golden_target

DRAFT = GOLDEN / "draft_trained_g1"
PROMPTS = [[61, 70, 22, 78, 216], [(11 * i + 3) % 250 for i in range(40)], [7, 8, 9]]


@contextlib.asynccontextmanager
async def between(middle: Middle, upstream: str) -> AsyncIterator[ServiceProxy]:
    """A proxy in front of a service."""
    proxy = ServiceProxy(middle)
    proxy.upstream = upstream
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()


@contextlib.asynccontextmanager
async def coordinator(target: str, draft: str, **settings: Any) -> AsyncIterator[RunningCoordinator]:
    """One that knows the services by these addresses."""
    values = {"target_address": target, "draft_address": draft, "drain_seconds": 0.2, **settings}
    running = await start_coordinator(CoordinatorConfig.load(None, **values))
    try:
        yield running
    finally:
        await running.stop()


@contextlib.asynccontextmanager
async def models() -> AsyncIterator[tuple[str, str]]:
    """The golden target in float64 and the drafter trained for it: their addresses."""
    target = await serve_target(golden_target(DRAFT, "float64"), "127.0.0.1:0")
    drafter = load_drafter(DRAFT, GOLDEN / "target_qwen3", ())
    draft = await serve_draft(DraftService(drafter), "127.0.0.1:0")
    try:
        yield target.address, draft.address
    finally:
        await draft.stop()
        await target.stop()


@dataclass(eq=False)
class Seat:
    """A service of this process, as a fleet's member is seen."""

    proxy: ServiceProxy | None
    watch: Watch | None = None


@dataclass(eq=False)
class InProcessFleet:
    """What a `Frame` needs of a `Fleet`."""

    members: dict[str, Seat]
    coordinators: list[str]
    pulse: Pulse = field(default_factory=Pulse)

    def watches(self, *names: str) -> list[Watch]:
        chosen = [self.members[name] for name in names] if names else self.members.values()
        return [seat.watch for seat in chosen if seat.watch is not None]

    def counts(self) -> Counter[str]:
        return sum((watch.counts for watch in self.watches()), Counter())


@contextlib.asynccontextmanager
async def fleet_here(**settings: Any) -> AsyncIterator[InProcessFleet]:
    """One of each service, on this event loop."""
    pulse = Pulse()
    watches = Watch(True, pulse.beat), Watch(False, pulse.beat)
    async with (
        models() as (target, draft),
        between(watches[0], target) as target_proxy,
        between(watches[1], draft) as draft_proxy,
        coordinator(target_proxy.address, draft_proxy.address, **settings) as running,
    ):
        seats = {"target-1": Seat(target_proxy, watches[0]), "draft-1": Seat(draft_proxy, watches[1])}
        yield InProcessFleet(seats, [running.address], pulse)
