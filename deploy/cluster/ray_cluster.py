"""A cluster as its operator's process sees it: brought up, asked, changed, brought down."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from protos.errors import Busy, DliteError, InvalidRequest, NotFound, TimedOut, Unavailable

try:
    import ray
except ModuleNotFoundError as error:
    raise InvalidRequest("Ray is not installed: pip install 'dlite[ray]'", field="deploy") from error
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group

from coordinator.swap_job import SwapOptions
from deploy.cluster.plan import ClusterPlan, plan
from deploy.cluster.ray_actors import ControllerActor
from deploy.cluster.ray_fleet import (
    NAMESPACE,
    actor_options,
    controller_name,
    forget,
    group_of,
    handle_of,
    member_names,
)
from deploy.cluster.spec import ClusterSpec

CALL_SECONDS = 60.0
# A drain waits for running texts; see `controller.DRAIN_SECONDS`.
CHANGE_SECONDS = 300.0


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Connects to a Ray cluster, unless this process is connected already.

    Args:
        address: host:port of its head; None is what RAY_ADDRESS says, or the one on this machine.

    Raises:
        Unavailable: there is none.
    """
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(
            address=address or os.environ.get("RAY_ADDRESS") or "auto",
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level=logging.WARNING,
        )
    except (ConnectionError, RuntimeError, TimeoutError, RayError) as error:
        raise Unavailable(
            f"no Ray cluster: {str(error).splitlines()[0]} Start one with `ray start --head`, or name one",
            field="--ray-address",
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


@dataclass(frozen=True)
class Cluster:
    """A cluster by its name. Its methods call the controller."""

    name: str

    def call(self, method: str, *args: Any, timeout_seconds: float = CALL_SECONDS) -> Any:
        """What the controller answers.

        Raises:
            NotFound: there is no such cluster.
            TimedOut: it does not answer.
            DliteError: as the controller raised it.
        """
        return _answer(getattr(self._controller(), method).remote(*args), timeout_seconds)

    def _controller(self) -> Any:
        handle = handle_of(controller_name(self.name))
        if handle is None:
            raise NotFound(f"no cluster {self.name!r} in this Ray cluster: `dlite deploy up` makes one")
        return handle

    @property
    def is_up(self) -> bool:
        return handle_of(controller_name(self.name)) is not None

    def logs(self, member: str, count: int) -> list[str]:
        """The last lines of a service's stderr. Raises NotFound."""
        if member not in (names := member_names(self.name)):
            raise NotFound(f"no replica {member!r}; there are: {', '.join(sorted(names)) or 'none'}")
        lines: list[str] = _answer(handle_of(member).logs.remote(count), CALL_SECONDS)
        return lines

    def up(self, spec: ClusterSpec, wait_seconds: float, say: Callable[[str], None]) -> dict[str, Any]:
        """Makes the cluster what the description says; nothing if it is already.

        Args:
            wait_seconds: until all replicas serve.

        Returns:
            `Changes`, and the status at the end.

        Raises:
            Unavailable: the Ray cluster has not the resources.
            TimedOut: a replica does not serve in time; says what it lacks.
        """
        if not self.is_up:
            _make_group(plan(spec), say)
            controller: Any = ray.remote(ControllerActor)
            options = {**actor_options(controller_name(self.name)), "num_cpus": 0}
            controller.options(**options).remote(spec.model_dump_json())
        text = spec.model_dump_json()
        changes: dict[str, Any] = self.call("apply", text, False, timeout_seconds=CHANGE_SECONDS)
        for what in ("created", "ended", "kept", "differing"):
            if changes[what]:
                say(f"{what}: {' '.join(changes[what])}")
        names = sorted({*changes["created"], *changes["kept"]})
        self.call("wait_serving", names, wait_seconds, timeout_seconds=wait_seconds + CALL_SECONDS)
        return {"changes": changes, **self.call("status")}

    def scale(self, kind: str, count: int, wait_seconds: float) -> dict[str, Any]:
        """See `Controller.scale`; waits until what is new serves."""
        changes: dict[str, Any] = self.call("scale", kind, count, timeout_seconds=CHANGE_SECONDS)
        created = changes["created"]
        self.call("wait_serving", created, wait_seconds, timeout_seconds=wait_seconds + CALL_SECONDS)
        return changes

    def swap_drafters(
        self, spec: ClusterSpec, options: SwapOptions, say: Callable[[str], None]
    ) -> dict[str, Any]:
        """See `swapping.swap_drafters`."""
        handle = self._controller()
        num_said = len(_answer(handle.said.remote(0), CALL_SECONDS))
        running = handle.swap_drafters.remote(spec.model_dump_json(), asdict(options))
        while True:
            done, _ = ray.wait([running], timeout=1.0)
            lines: list[str] = _answer(handle.said.remote(num_said), CALL_SECONDS)
            num_said += len(lines)
            for line in lines:
                say(line)
            if done:
                result: dict[str, Any] = _answer(running, CALL_SECONDS)
                return result

    def changes(self, spec: ClusterSpec) -> dict[str, Any]:
        """What `up` would do."""
        if self.is_up:
            found: dict[str, Any] = self.call("apply", spec.model_dump_json(), True)
            return found
        names = [actor.name for actor in plan(spec).actors]
        return {"created": names, "ended": [], "kept": [], "differing": []}

    def down(self, say: Callable[[str], None]) -> list[str]:
        """Ends everything of the cluster; returns the names of what there was. Nothing is no error."""
        names = sorted(member_names(self.name))
        if self.is_up:
            say("letting running texts finish")
            with contextlib.suppress(TimedOut, Busy):  # a swap under way ends with its actors
                self.call("end_all", timeout_seconds=CHANGE_SECONDS)
        for name in (controller_name(self.name), *member_names(self.name)):
            if (handle := handle_of(name)) is not None:
                ray.kill(handle, no_restart=True)
        with contextlib.suppress(ValueError):
            remove_placement_group(group_of(self.name))
        forget(self.name)
        return names


def _answer(reference: Any, timeout_seconds: float) -> Any:
    try:
        return ray.get(reference, timeout=timeout_seconds)
    except GetTimeoutError as error:
        raise TimedOut(f"no answer within {timeout_seconds:g} s") from error
    except RayTaskError as error:
        if isinstance(error.cause, DliteError):
            raise error.cause from None
        raise


def _make_group(found: ClusterPlan, say: Callable[[str], None]) -> None:
    """Reserves all places at once, or none."""
    with contextlib.suppress(ValueError):  # of a cluster whose controller never came
        remove_placement_group(group_of(found.name))
    say(f"placing {len(found.actors)} actors, {found.placement}")
    bundles = [actor.resources for actor in found.actors]
    group = placement_group(bundles, strategy=found.placement, name=found.name, lifetime="detached")
    if not group.wait(CALL_SECONDS):
        remove_placement_group(group)
        has = ", ".join(
            f"{k} {v:g}" for k, v in sorted(ray.available_resources().items()) if "node:" not in k
        )
        needs = ", ".join(f"{name} {amount:g}" for name, amount in found.totals().items())
        raise Unavailable(f"no room for {found.placement} of {needs}; free are {has}", field="placement")
