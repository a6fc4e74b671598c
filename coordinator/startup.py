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
from coordinator.draft_link import DraftLink
from coordinator.draft_pool import DraftPool
from coordinator.gauges import Gauges, Link
from coordinator.server import OPERATOR_METHODS, CoordinatorServicer
from coordinator.services import Backends
from coordinator.target_link import TargetLink
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
class RunningCoordinator:
    """A started coordinator."""

    coordinator: Coordinator
    target: TargetLink
    drafters: DraftPool
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
        await self.drafters.stop()
        await self.target.stop()
        await self.ports.stop()


class Readiness:
    """Keeps the health service in step with the connection to the target."""

    def __init__(self) -> None:
        self._server: rpc.RunningServer | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def watch(self, server: rpc.RunningServer) -> None:
        self._server = server

    def note(self, connected: bool) -> None:
        """The target came or went."""
        if self._server is not None:
            task = asyncio.create_task(self._server.set_ready(connected))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


async def start_coordinator(config: CoordinatorConfig) -> RunningCoordinator:
    """Starts a coordinator and waits until it is ready.

    A drafter that is not there yet, or does not fit, is a warning: the coordinator decodes without it
    and takes it up when it comes.

    Raises:
        InvalidRequest: a file of its security cannot be used.
        Unavailable: no target within `connect_seconds`, or the address is taken.
        ContractMismatch: the target's tokenizer is not the one it describes.
    """
    coordinator_id = f"coordinator-{uuid.uuid4().hex[:12]}"
    tenants = read_tenants(config.auth_tokens) if config.auth_tokens is not None else Tenants()
    front, behind = _security(config, tenants)
    readiness = Readiness()
    target_endpoint = Endpoint(config.target_address, behind)
    shape = config.emulated_target_link
    target = TargetLink(
        target_endpoint, coordinator_id, config.resend_seconds, readiness.note, emulated=shape
    )
    drafters: DraftPool | None = None
    target.start()
    try:
        if not await target.wait_connected(config.connect_seconds):
            raise Unavailable(
                f"no target answers at {config.target_address} within {config.connect_seconds:g} s: "
                "is `dlite target` running there?"
            )
        tokenizer = await fetch_tokenizer(target_endpoint, target.describe.tokenizer_hash)
        drafters = draft_pool(config, behind, coordinator_id, target.describe)
        await _connect(drafters, config)
        backends = Backends(target, drafters, tokenizer, tenants)
        coordinator = Coordinator(config, coordinator_id, backends, time.time_ns() // 1_000_000)
        links: dict[str, Link] = {"target": target} | ({"draft": drafters} if config.draft_addresses else {})
        watch = start_watch(coordinator, backends, links, config, target.kv_stats)
        ports = await _open_ports(config, coordinator, watch, links, front)
    except BaseException:
        for link in (drafters, target):
            if link is not None:
                await link.stop()
        raise
    readiness.watch(ports.server)
    await ports.server.set_ready(target.is_connected)
    return RunningCoordinator(coordinator, target, drafters, ports, config.drain_seconds)


def _security(config: CoordinatorConfig, tenants: Tenants) -> tuple[ServerSecurity, ClientSecurity]:
    """Of the public port, and towards the services."""
    files = SecurityFiles.of(config, config.token_file)
    front = replace(files.server(), restricted=OPERATOR_METHODS, operators=tenants.operators)
    return front, files.client()


def _start_admin(
    config: CoordinatorConfig, coordinator: Coordinator, links: dict[str, Link]
) -> AdminServer | None:
    if not config.admin_address:
        return None
    metrics = coordinator.metrics
    metrics.registry.register(Gauges(metrics.model, coordinator.load, links))
    return AdminServer(config.admin_address, metrics.registry, lambda: coordinator.is_ready)


async def _open_ports(
    config: CoordinatorConfig,
    coordinator: Coordinator,
    watch: Watch,
    links: dict[str, Link],
    security: ServerSecurity,
) -> Ports:
    """Opens both ports; when one cannot be had nothing stays open."""
    servicer = CoordinatorServicer(coordinator, config.client_stall_seconds, security.tokens)
    service = servicer.service(watch.observer.methods())
    admin: AdminServer | None = None
    try:
        admin = _start_admin(config, coordinator, links)
        return Ports(await rpc.start_server(service, config.address, security), admin, watch)
    except BaseException:
        if admin is not None:
            admin.stop()
        await watch.stop()
        raise


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
