"""Makes, finds and ends the actors of a cluster in Ray."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

import ray
from ray.exceptions import ActorUnschedulableError, RayActorError
from ray.experimental import internal_kv
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from deploy.cluster.host import HostStatus
from deploy.cluster.plan import KINDS, Actor, name_of
from deploy.cluster.spec import ClusterSpec

NAMESPACE = "dlite"
# A service may drain for so long when it is stopped, and an actor answers within so long.
STOP_SECONDS = 30.0
ANSWER_SECONDS = 5.0
_CALLS_AT_ONCE = 32


def controller_name(cluster: str) -> str:
    """Name of the controller's actor."""
    return f"{cluster}-controller"


def actor_options(name: str) -> dict[str, Any]:
    """Of every actor: it outlives who made it, is there once, and comes back after a failure."""
    return {
        "name": name,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "max_restarts": -1,
        "max_concurrency": _CALLS_AT_ONCE,
    }


def handle_of(name: str) -> Any:
    """A named actor; None when there is none."""
    try:
        return ray.get_actor(name, NAMESPACE)
    except ValueError:
        return None


async def answer_of(name: str, method: str, *args: Any, within_seconds: float = ANSWER_SECONDS) -> Any:
    """What an actor answers; None when there is none, or it does not answer in time (it starts anew, or
    has no place yet)."""
    handle = await asyncio.to_thread(handle_of, name)
    if handle is None:
        return None
    reference = getattr(handle, method).remote(*args)
    answer = asyncio.ensure_future(_value(reference))
    await asyncio.wait({answer}, timeout=within_seconds)
    if not answer.done():
        answer.cancel()
        return None
    return answer.result()


async def _value(reference: Any) -> Any:
    try:
        return await reference
    except (RayActorError, ActorUnschedulableError):
        return None


class RayFleet:
    """The `Fleet` of a controller.

    Args:
        spec: of the cluster, whose placement group has its name.
    """

    def __init__(self, spec: ClusterSpec) -> None:
        self._spec = spec
        self._key = f"dlite/{spec.name}".encode()

    async def create(self, actor: Actor) -> None:
        """Asks for an actor; it waits for a place if there is none."""
        await asyncio.to_thread(self._create, actor)

    def _create(self, actor: Actor) -> None:
        from deploy.cluster.ray_actors import ServiceActor

        resources = dict(actor.resources)
        options = {
            **actor_options(actor.name),
            "num_cpus": resources.pop("CPU", 0),
            "num_gpus": resources.pop("GPU", 0),
            "memory": resources.pop("memory", None),
            "resources": resources,
            "scheduling_strategy": self._place(actor),
        }
        made: Any = ray.remote(ServiceActor)
        made.options(**options).remote(asdict(actor), controller_name(self._spec.name))

    def _place(self, actor: Actor) -> Any:
        if actor.bundle is None:
            return "DEFAULT" if self._spec.placement == "PACK" else "SPREAD"
        return PlacementGroupSchedulingStrategy(
            placement_group=group_of(self._spec.name), placement_group_bundle_index=actor.bundle
        )

    async def found(self) -> list[tuple[Actor, HostStatus]]:
        """Actors of this cluster."""
        names = await asyncio.to_thread(member_names, self._spec.name)
        answers = await asyncio.gather(*(answer_of(name, "describe") for name in names))
        return [
            (actor_from(each["actor"]), HostStatus(**each["status"])) for each in answers if each is not None
        ]

    async def status(self, name: str) -> HostStatus:
        """What an actor knows; "starting" while it does not answer."""
        answer = await answer_of(name, "describe")
        return HostStatus() if answer is None else HostStatus(**answer["status"])

    async def remember(self, text: str) -> None:
        """Keeps it where Ray keeps the names of actors."""
        await asyncio.to_thread(internal_kv._internal_kv_put, self._key, text.encode())

    async def remembered(self) -> str | None:
        """The last of them."""
        found = await asyncio.to_thread(internal_kv._internal_kv_get, self._key)
        return found.decode() if found is not None else None

    async def end(self, name: str) -> None:
        """Gracefully, then for good."""
        handle = await asyncio.to_thread(handle_of, name)
        if handle is not None:
            await answer_of(name, "stop", within_seconds=STOP_SECONDS)
            await asyncio.to_thread(ray.kill, handle, no_restart=True)


def actor_from(fields: dict[str, Any]) -> Actor:
    """From what `asdict` made of it, also after a journey as JSON."""
    return Actor(**{**fields, "command": tuple(fields["command"])})


def forget(cluster: str) -> None:
    """What `remember` kept."""
    internal_kv._internal_kv_del(f"dlite/{cluster}".encode())


def member_names(cluster: str) -> list[str]:
    """Names of the actors that hold a cluster's services."""
    heads = [name_of(cluster, kind, 0)[:-1] for kind in KINDS]
    named = [each["name"] for each in ray.util.list_named_actors(True) if each["namespace"] == NAMESPACE]
    return [name for name in named if any(name.removeprefix(head).isdigit() for head in heads)]


def group_of(cluster: str) -> PlacementGroup:
    """The placement group of a cluster. Raises ValueError when there is none."""
    group: PlacementGroup = ray.util.get_placement_group(cluster)
    return group
