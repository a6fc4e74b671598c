"""Whether a service gets on with its work, as the health service tells under the name `liveness`.

Ready ("" and the service's own name) says: weights are loaded and a self-test round has passed. Alive says:
the event loop answers, and the step or batch under way has not been under way for too long. A service that is
not ready is waited for; one that is not alive is ended and started anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from grpc_health.v1 import health_pb2

from protos import rpc

# A step over the largest prompt chunk on the slowest machine takes less by far.
STALL_SECONDS = 120.0
LOOK_SECONDS = 1.0
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Liveness:
    """Keeps the health service in step with what a service says of its work.

    Args:
        stuck_seconds: how long the work under way has been so; 0 without any.
    """

    def __init__(
        self,
        server: rpc.RunningServer,
        stuck_seconds: Callable[[], float],
        stall_seconds: float = STALL_SECONDS,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._server = server
        self._stuck_seconds = stuck_seconds
        self._stall_seconds = stall_seconds
        self._look_seconds = look_seconds
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Ends the watch."""
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        while True:
            is_alive = self._stuck_seconds() < self._stall_seconds
            await self._server.health.set(rpc.LIVENESS, SERVING if is_alive else NOT_SERVING)
            await asyncio.sleep(self._look_seconds)
