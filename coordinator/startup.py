"""Starts and stops a coordinator: links first, then the tokenizer, then the public port."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

from coordinator.admin import AdminServer
from coordinator.config import CoordinatorConfig
from coordinator.coordinator import Coordinator
from coordinator.draft_gauges import DraftGauges
from coordinator.draft_link import DraftLink
from coordinator.draft_pool import DraftPool
from coordinator.gauges import Gauges, NamedLink
from coordinator.membership import Membership
from coordinator.server import OPERATOR_METHODS, CoordinatorServicer
from coordinator.services import Backends
from coordinator.target_link import TargetLink
from coordinator.target_members import TargetMembers
from coordinator.tenants import Tenants, read_tenants
from coordinator.tokenizer_fetch import fetch_tokenizer
from coordinator.trace.watch import Watch, start_watch
from protos import common_pb2, rpc
from protos.errors import Unavailable
from protos.security import ClientSecurity, Endpoint, SecurityFiles, ServerSecurity

log = logging.getLogger("dlite.coordinator")


@dataclass(frozen=True, eq=False)
class Ports:
    """What is open to the outside: the public port, the admin port or none, and who watches."""

    server: rpc.RunningServer
    admin: AdminServer | None
    watch: Watch

    async def stop(self) -> None:
        """Closes them; a trace of rounds is whole afterwards."""
        await self.server.stop(1.0)
        await self.watch.stop()
        if self.admin is not None:
            await asyncio.to_thread(self.admin.stop)


@dataclass(frozen=True, eq=False)
class Replicas:
    """All targets and drafters of a coordinator."""

    targets: TargetMembers
    drafters: DraftPool

    def links(self) -> list[NamedLink]:
        """Their streams, of those that are there now."""
        targets = [NamedLink("target", address, link) for address, link in self.targets.links.items()]
        drafters = [NamedLink("draft", address, link) for address, link in self.drafters.links.items()]
        return targets + drafters

    async def stop(self) -> None:
        """Ends all streams with an end frame."""
        await self.drafters.stop()
        await self.targets.stop()


@dataclass(frozen=True, eq=False)
class RunningCoordinator:
    """A started coordinator."""

    coordinator: Coordinator
    replicas: Replicas
    ports: Ports
    drain_seconds: float

    @property
    def address(self) -> str:
        """Where clients find it."""
        return self.ports.server.address

    @property
    def admin_address(self) -> str:
        """Of the admin port; empty when there is none."""
        return self.ports.admin.address if self.ports.admin is not None else ""

    async def stop(self) -> None:
        """Lets running requests end, ends the streams with an end frame, closes the ports."""
        await self.ports.server.set_ready(False)
        await self.coordinator.drain(self.drain_seconds)
        await self.replicas.stop()
        await self.ports.stop()


class Readiness:
    """Keeps the health service in step with the connections to the targets: any of them is enough."""

    def __init__(self, targets: TargetMembers, server: rpc.RunningServer) -> None:
        self._targets = targets
        self._server = server
        self._tasks: set[asyncio.Task[None]] = set()
        targets.watch(self._note)

    def _note(self) -> None:
        """A target came or went."""
        task = asyncio.create_task(self._server.set_ready(self._targets.is_connected))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def start_coordinator(config: CoordinatorConfig) -> RunningCoordinator:
    """Starts a coordinator and waits until it is ready.

    A drafter or a further target that is not there yet, or does not fit, is a warning: the coordinator
    works without it and takes it up when it comes.

    Raises:
        InvalidRequest: a file of its security cannot be used.
        Unavailable: no target within `connect_seconds`, or the address is taken.
        ContractMismatch: the target's tokenizer is not the one it describes.
    """
    coordinator_id = f"coordinator-{uuid.uuid4().hex[:12]}"
    tenants = read_tenants(config.auth_tokens) if config.auth_tokens is not None else Tenants()
    front, behind = _security(config, tenants)
    targets = target_members(config, behind, coordinator_id)
    drafters: DraftPool | None = None
    try:
        targets.set_addresses(config.target_addresses)
        if not await targets.wait_connected(config.connect_seconds):
            heard = "; ".join(each.last_error for each in targets.replicas() if each.last_error)
            raise Unavailable(
                f"no target answers at {config.target_address} within {config.connect_seconds:g} s: "
                f"is `dlite target` running there? (last heard: {heard or 'nothing'})"
            )
        address = next(each.address for each in targets if each.port.is_connected)
        tokenizer = await fetch_tokenizer(Endpoint(address, behind), targets.describe.tokenizer_hash)
        drafters = draft_pool(config, behind, coordinator_id, targets.describe)
        await _connect(drafters, config)
        replicas = Replicas(targets, drafters)
        backends = Backends(targets, drafters, tokenizer, tenants)
        coordinator = Coordinator(config, coordinator_id, backends, time.time_ns() // 1_000_000)
        watch = start_watch(coordinator, backends, replicas.links, config)
        ports = await _open_ports(config, coordinator, watch, replicas, front)
    except BaseException:
        for pool in (drafters, targets):
            if pool is not None:
                await pool.stop()
        raise
    Readiness(targets, ports.server)
    return RunningCoordinator(coordinator, replicas, ports, config.drain_seconds)


def _security(config: CoordinatorConfig, tenants: Tenants) -> tuple[ServerSecurity, ClientSecurity]:
    """Of the public port, and towards the services."""
    files = SecurityFiles.of(config, config.token_file)
    front = replace(files.server(), restricted=OPERATOR_METHODS, operators=tenants.operators)
    return front, files.client()


def _start_admin(
    config: CoordinatorConfig, coordinator: Coordinator, replicas: Replicas
) -> AdminServer | None:
    if not config.admin_address:
        return None
    metrics = coordinator.metrics
    metrics.registry.register(Gauges(metrics.model, coordinator.load, replicas.links))
    metrics.registry.register(DraftGauges(metrics.model, replicas.drafters, coordinator.feed.draft_sums))
    return AdminServer(config.admin_address, metrics.registry, lambda: coordinator.is_ready)


async def _open_ports(
    config: CoordinatorConfig,
    coordinator: Coordinator,
    watch: Watch,
    replicas: Replicas,
    security: ServerSecurity,
) -> Ports:
    """Opens both ports; when one cannot be had nothing stays open."""
    servicer = CoordinatorServicer(coordinator, config.client_stall_seconds, security.tokens)
    membership = Membership(replicas.targets, replicas.drafters, coordinator.feed.draft_sums)
    service = servicer.service({**watch.observer.methods(), **membership.methods()})
    admin: AdminServer | None = None
    try:
        admin = _start_admin(config, coordinator, replicas)
        return Ports(await rpc.start_server(service, config.address, security), admin, watch)
    except BaseException:
        if admin is not None:
            admin.stop()
        await watch.stop()
        raise


def target_members(config: CoordinatorConfig, behind: ClientSecurity, coordinator_id: str) -> TargetMembers:
    """The targets of a coordinator, nobody in it yet."""

    def connect(address: str, on_change: Callable[[bool], None]) -> TargetLink:
        endpoint, shape = Endpoint(address, behind), config.emulated_target_link
        return TargetLink(endpoint, coordinator_id, config.resend_seconds, on_change, emulated=shape)

    return TargetMembers(connect, config.drain_seconds)


def draft_pool(
    config: CoordinatorConfig, behind: ClientSecurity, coordinator_id: str, target: common_pb2.Describe
) -> DraftPool:
    """The drafters of a coordinator, nobody in it yet; `target` is what they must fit to."""

    def connect(address: str, on_change: Callable[[], None]) -> DraftLink:
        shape = config.emulated_draft_link
        endpoint = Endpoint(address, behind)
        return DraftLink(endpoint, coordinator_id, target, emulated=shape, on_change=on_change)

    return DraftPool(connect, config.draft_timeout_seconds)


async def _connect(drafters: DraftPool, config: CoordinatorConfig) -> None:
    drafters.set_addresses(config.draft_addresses)
    if not await drafters.wait_settled(config.connect_seconds):
        log.warning("no drafter answers at %s: decoding without it until it comes", config.draft_address)
    if drafters.refusal:
        log.error("%s", drafters.refusal)
