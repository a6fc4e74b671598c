"""Start and stop of a draft service in this process."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from draft_service.config import DraftConfig
from draft_service.loader import open_drafter, set_threads
from draft_service.service import DraftService
from protos import rpc
from protos.liveness import Liveness
from protos.security import SecurityFiles, ServerSecurity

_STOP_GRACE_SECONDS = 2.0


@dataclass(frozen=True, eq=False)
class RunningDraft:
    """A started, ready draft service."""

    address: str
    service: DraftService
    server: rpc.RunningServer
    liveness: Liveness

    async def stop(self) -> None:
        """Ends streams, stops listening and lets the running batch end."""
        await self.liveness.stop()
        self.service.end_streams()
        await self.server.stop(_STOP_GRACE_SECONDS)
        await self.service.batcher.stop()


async def start_draft_service(config: DraftConfig) -> RunningDraft:
    """Loads, self-tests and serves what the config names; ready when it returns.

    Raises:
        InvalidRequest: a path is wrong, or a file of the port's security.
        ContractMismatch: the checkpoint is damaged, does not fit its target or fails the self-test.
        Unavailable: the address is taken.
    """
    num_threads = set_threads(config.threads)
    drafter = await asyncio.get_running_loop().run_in_executor(None, open_drafter, config)
    service = DraftService(drafter, config.max_batch_items, config.max_queued_items, num_threads)
    return await serve(service, config.address, SecurityFiles.of(config).server())


async def serve(service: DraftService, address: str, security: ServerSecurity | None = None) -> RunningDraft:
    """Self-tests and serves a drafter that is already made.

    Raises:
        ContractMismatch: the self-test failed.
        Unavailable: the address is taken.
    """
    running = await rpc.start_server(service.handlers(), address, security)
    try:
        await service.batcher.start()
        await running.set_ready(True)
    except BaseException:
        await running.stop(0)
        await service.batcher.stop()
        raise
    return RunningDraft(running.address, service, running, Liveness(running, service.batcher.stuck_seconds))
