"""The two kinds of Ray actors: one that holds a service, and the controller.

Between actors go plain dictionaries, strings and numbers, a few a minute. Prompts, tokens and tensors go
between the services alone, over gRPC.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import asdict
from typing import Any

import ray

from coordinator.replicas_remote import replicas_json
from coordinator.swap_job import SwapOptions
from deploy.child import Command
from deploy.cluster.controller import Controller
from deploy.cluster.host import HostStatus, ServiceHost
from deploy.cluster.loop_thread import LoopThread
from deploy.cluster.operator import GrpcOperator
from deploy.cluster.plan import command_line
from deploy.cluster.ray_fleet import RayFleet, actor_from, answer_of
from deploy.cluster.scaling import Autoscaler
from deploy.cluster.spec import ClusterSpec
from deploy.cluster.swapping import swap_drafters
from deploy.node_files import forget_service, note_service

ASK_SECONDS = 1.0


class ServiceActor:
    """Holds one service: starts its entry point as a child, keeps it alive, tells the controller.

    Args:
        actor: an `Actor` as a dictionary.
        controller: name of the controller's actor.
    """

    def __init__(self, actor: dict[str, Any], controller: str) -> None:
        self._actor = actor_from(actor)
        self._controller = controller
        self._node = ray.util.get_node_ip_address()
        self._thread = LoopThread()
        note_service(self._actor.name, "")
        self._host = ServiceHost(self._command, self._register, self._say)
        self._task = self._thread.spawn(self._host.run())

    def describe(self) -> dict[str, Any]:
        """What it holds, how that is, and on which node."""
        return {"actor": asdict(self._actor), "status": asdict(self._host.status), "node": self._node}

    def logs(self, count: int) -> list[str]:
        """The last lines of the service's stderr."""
        return self._host.last_lines(count)

    def stop(self) -> None:
        """Ends the service gracefully, for good."""

        async def stop() -> None:
            await self._thread.cancel(self._task)
            await self._host.stop()
            forget_service(self._actor.name)

        self._thread.run(stop())

    async def _command(self) -> Command:
        targets: list[str] = []
        drafts: list[str] = []
        while self._actor.kind == "coordinator" and not targets:
            targets, drafts = await self._ask("endpoints") or ([], [])
            if not targets:
                await asyncio.sleep(ASK_SECONDS)
        verb, *flags = command_line(self._actor.command, self._node, targets, drafts)
        return Command(verb, flags, max(int(self._actor.resources["CPU"]), 1))

    async def _register(self, status: HostStatus) -> None:
        note_service(self._actor.name, status.address)
        # A controller that is not there now asks for itself when it comes.
        await self._ask("register", asdict(self._actor), asdict(status))

    async def _ask(self, method: str, *args: Any) -> Any:
        return await answer_of(self._controller, method, *args)

    def _say(self, line: str) -> None:
        print(f"{self._actor.name}: {line}", file=sys.stderr, flush=True)


class ControllerActor:
    """Holds a `Controller`, tells coordinators of changes, scales drafters.

    Args:
        spec: the description, as JSON, that the placement group was made for.
    """

    def __init__(self, spec: str) -> None:
        logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
        read = ClusterSpec.model_validate_json(spec)
        self._said: list[str] = []
        self._thread = LoopThread()
        self._controller = Controller(read, RayFleet(read), GrpcOperator(read.operator))
        self._thread.run(self._controller.recover())
        self._thread.spawn(self._controller.run())
        self._thread.spawn(Autoscaler(self._controller).run())

    def register(self, actor: dict[str, Any], status: dict[str, Any]) -> None:
        async def register() -> None:
            self._controller.register(actor_from(actor), HostStatus(**status))

        self._thread.run(register())

    def endpoints(self) -> tuple[list[str], list[str]]:
        """Addresses of targets and drafters."""

        async def endpoints() -> tuple[list[str], list[str]]:
            targets, drafts = self._controller.endpoints()
            return list(targets), list(drafts)

        return self._thread.run(endpoints())

    def apply(self, spec: str, dry_run: bool) -> dict[str, Any]:
        """See `Controller.apply`; the description as JSON."""
        read = ClusterSpec.model_validate_json(spec)
        return asdict(self._thread.run(self._controller.apply(read, dry_run=dry_run)))

    def scale(self, kind: str, count: int) -> dict[str, Any]:
        """See `Controller.scale`."""
        return asdict(self._thread.run(self._controller.scale(kind, count)))  # type: ignore[arg-type]

    def swap_drafters(self, spec: str, options: dict[str, Any]) -> dict[str, Any]:
        """See `swapping.swap_drafters`; `said` shows what it says meanwhile."""
        read = ClusterSpec.model_validate_json(spec)
        work = swap_drafters(self._controller, read, SwapOptions(**options), self._said.append)
        return self._thread.run(work)

    def said(self, start: int) -> list[str]:
        """Lines of progress of all swaps, from one of them on."""
        return self._said[start:]

    def drain(self, name: str) -> None:
        """See `Controller.drain`."""
        self._thread.run(self._controller.drain(name))

    def wait_serving(self, names: list[str], timeout_seconds: float) -> None:
        """See `Controller.wait_serving`."""
        self._thread.run(self._controller.wait_serving(names, timeout_seconds))

    def end_all(self) -> None:
        """See `Controller.end_all`."""
        self._thread.run(self._controller.end_all())

    def status(self) -> dict[str, Any]:
        """All members, and what coordinators see of them."""

        async def status() -> dict[str, Any]:
            await self._controller.refresh()
            seen = await self._controller.seen()
            return {
                "name": self._controller.spec.name,
                "members": [
                    {
                        "name": member.actor.name,
                        "kind": member.actor.kind,
                        "resources": member.actor.resources,
                        **asdict(member.status),
                        "is_leaving": member.is_leaving,
                    }
                    for member in self._controller.members.values()
                ],
                "coordinators": {
                    name: replicas_json(found.replicas, found.drafts) for name, found in seen.items()
                },
            }

        return self._thread.run(status())
