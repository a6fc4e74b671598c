"""A service that ends or hangs is started again, on its address, with back-off.

Whoever used it comes back by itself: the coordinator opens its requests anew at the target, clients
resume at the coordinator.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from deploy.child import Child, Ready
from protos.errors import Unavailable

_HEALTH = "/grpc.health.v1.Health/Check"


@dataclass(frozen=True)
class RestartPolicy:
    """Seconds, and how often.

    Args:
        first_pause: before the first restart; doubles with each that follows.
        longest_pause: at most.
        healthy: a service that served for so long has no failures behind it.
        max_failures: with more in a row it is given up.
        probe_every, probe_timeout: of the health check.
        max_silent: so many checks in a row without an answer are a hang.
    """

    first_pause: float = 0.5
    longest_pause: float = 30.0
    healthy: float = 60.0
    max_failures: int = 5
    probe_every: float = 2.0
    probe_timeout: float = 5.0
    max_silent: int = 3


@dataclass(eq=False)
class Backoff:
    """How long to wait before a service that has failed is started again. Pure."""

    policy: RestartPolicy
    num_failures: int = field(default=0, init=False)

    def pause_after(self, served_seconds: float) -> float | None:
        """The pause after a failure; None when it is time to give up.

        Args:
            served_seconds: since it was ready; 0 when it never was.
        """
        if served_seconds >= self.policy.healthy:
            self.num_failures = 0
        self.num_failures += 1
        if self.num_failures > self.policy.max_failures:
            return None
        # Bounded: a power of two is beyond a float's range after a thousand failures.
        doubled: float = self.policy.first_pause * 2.0 ** min(self.num_failures - 1, 64)
        return min(doubled, self.policy.longest_pause)


@dataclass(eq=False)
class Supervised:
    """One service that is kept alive.

    Args:
        restart: starts it anew on its address and waits until it is ready.
        on_restart: told of the new process.
    """

    child: Child
    ready: Ready
    restart: Callable[[Child, Ready], Awaitable[tuple[Child, Ready]]]
    on_restart: Callable[[Ready], None]


async def keep_alive(service: Supervised, policy: RestartPolicy, say: Callable[[str], None]) -> Unavailable:
    """Restarts a service as often as it ends, until it fails too often in a row.

    Returns:
        How it ended the last time.
    """
    backoff = Backoff(policy)
    loop = asyncio.get_running_loop()
    ready_since: float | None = loop.time()
    while True:
        if ready_since is not None:
            failure = await _ended(service, policy, say)
        served = 0.0 if ready_since is None else loop.time() - ready_since
        pause = backoff.pause_after(served)
        how = failure.message.splitlines()[0].rstrip(":")
        if pause is None:
            return failure
        say(f"{how}: starting again in {pause:g} s")
        await asyncio.sleep(pause)
        try:
            service.child, service.ready = await service.restart(service.child, service.ready)
            service.on_restart(service.ready)
            ready_since = loop.time()
        except Unavailable as error:
            failure, ready_since = error, None


async def _ended(service: Supervised, policy: RestartPolicy, say: Callable[[str], None]) -> Unavailable:
    """Waits until the process ends; one that hangs is killed."""
    watch = asyncio.create_task(_until_silent(service.ready.address, policy))
    end = asyncio.create_task(service.child.failure())
    try:
        await asyncio.wait({watch, end}, return_when=asyncio.FIRST_COMPLETED)
        if not end.done():
            say(f"the {service.child.name} service does not answer: killing it")
            with contextlib.suppress(ProcessLookupError):
                os.killpg(service.child.pid, signal.SIGKILL)
        return await end
    finally:
        watch.cancel()
        end.cancel()


async def _until_silent(address: str, policy: RestartPolicy) -> None:
    """Returns when the service has not said `max_silent` times in a row that it gets on with its work.

    Silence counts, or that it hangs (see `protos.liveness`). A port that refuses (a process that is ending,
    a certificate that is asked for) says that somebody is there, and the end of the process is seen
    elsewhere.
    """
    # Here, so that `--help` of a verb that supervises stays quick.
    import grpc
    from grpc_health.v1 import health_pb2

    from protos import rpc

    num_silent = 0
    async with rpc.open_channel(address) as channel:
        check: Any = channel.unary_unary(_HEALTH)
        request = health_pb2.HealthCheckRequest(service=rpc.LIVENESS).SerializeToString()
        while num_silent < policy.max_silent:
            await asyncio.sleep(policy.probe_every)
            try:
                answer = await check(request, timeout=policy.probe_timeout)
                status = health_pb2.HealthCheckResponse.FromString(answer).status
                hangs = status == health_pb2.HealthCheckResponse.NOT_SERVING
                num_silent = num_silent + 1 if hangs else 0
            except grpc.aio.AioRpcError as error:
                is_silent = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                num_silent = num_silent + 1 if is_silent else 0
