"""The public gRPC service over a `Coordinator`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc

from coordinator.coordinator import Coordinator
from coordinator.generation import Generation
from protos import coordinator_pb2 as pb
from protos import rpc

NAME = "dlite.v1.Coordinator"
_STATUS_SECONDS = 1.0


class CoordinatorServicer:
    """The methods of `dlite.v1.Coordinator` over a `Coordinator`."""

    def __init__(self, coordinator: Coordinator, client_stall_seconds: float) -> None:
        self._coordinator = coordinator
        self._client_stall_seconds = client_stall_seconds
        self._statuses: set[asyncio.Task[None]] = set()

    def service(self) -> rpc.Service:
        return rpc.Service(
            NAME,
            {
                "Generate": rpc.server_stream(pb.GenerateRequest, self.generate),
                "Abort": rpc.unary(pb.AbortRequest, self.abort),
                "ListModels": rpc.unary(pb.ListModelsRequest, self.list_models),
                "GetServerInfo": rpc.unary(pb.GetServerInfoRequest, self.get_server_info),
                "Tokenize": rpc.unary(pb.TokenizeRequest, self.tokenize),
            },
        )

    async def generate(
        self, message: pb.GenerateRequest, context: rpc.Context
    ) -> AsyncIterator[pb.GenerateResponse]:
        call = asyncio.current_task()
        generation = await self._coordinator.admit(message)

        def on_done(_: rpc.Context) -> None:
            generation.abort()

        # Also when the client goes away while nothing is sent: then no exception reaches this frame.
        add_done_callback: Any = context.add_done_callback
        add_done_callback(on_done)
        watch = asyncio.create_task(self._cut_when_stalled(generation, context, call))
        try:
            async for response in generation.outlet.messages():
                yield response
        finally:
            watch.cancel()
            generation.abort()

    async def _cut_when_stalled(
        self, generation: Generation, context: rpc.Context, call: asyncio.Task[object] | None
    ) -> None:
        """A client that does not read the end of its answer must not hold the call for ever.

        Cancelled by `generate` when the client has read everything. The status is queued before the
        call is cancelled: a cancelled call alone sends none, and a client that reads again later
        would wait for ever.
        """
        await generation.wait_ended()
        num_unread = -1
        while num_unread != generation.outlet.num_queued:
            num_unread = generation.outlet.num_queued
            await asyncio.sleep(self._client_stall_seconds)
        status = asyncio.create_task(_send_cancelled(context))
        self._statuses.add(status)
        status.add_done_callback(self._statuses.discard)
        await asyncio.wait({status}, timeout=_STATUS_SECONDS)
        if call is not None:
            call.cancel()

    async def abort(self, message: pb.AbortRequest, context: rpc.Context) -> pb.AbortResponse:
        return pb.AbortResponse(found=self._coordinator.abort(message.request_id))

    async def list_models(self, message: pb.ListModelsRequest, context: rpc.Context) -> pb.ListModelsResponse:
        return self._coordinator.models()

    async def get_server_info(
        self, message: pb.GetServerInfoRequest, context: rpc.Context
    ) -> pb.GetServerInfoResponse:
        return self._coordinator.info()

    async def tokenize(self, message: pb.TokenizeRequest, context: rpc.Context) -> pb.TokenizeResponse:
        return pb.TokenizeResponse(token_ids=await self._coordinator.tokenize(message))


async def _send_cancelled(context: rpc.Context) -> None:
    """Queues the status behind what the client has not read yet."""
    with contextlib.suppress(grpc.aio.AbortError, grpc.aio.UsageError):
        await context.abort(grpc.StatusCode.CANCELLED, "the client stopped reading")
