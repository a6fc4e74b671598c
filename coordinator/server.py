"""The public gRPC service over a `Coordinator`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc

from coordinator.coordinator import Coordinator
from coordinator.generation import Generation
from coordinator.output import Outlet
from coordinator.tenants import NOBODY
from protos import coordinator_pb2 as pb
from protos import rpc
from protos.errors import TimedOut, Unauthenticated
from protos.tokens import TokenTable, bearer_token

NAME = "dlite.v1.Coordinator"
# They show what runs, whoever's it is, or change what it runs on.
OPERATOR_METHODS = frozenset(
    f"/{NAME}/{name}" for name in ("GetStats", "WatchRounds", "ExplainTuner", "ListReplicas", "SetReplicas")
)
_STATUS_SECONDS = 1.0
# A request ends this long before its caller's deadline (at most a tenth of it), so that the usage
# still arrives.
_DEADLINE_MARGIN_SECONDS = 0.1


class CoordinatorServicer:
    """The methods of `dlite.v1.Coordinator` over a `Coordinator`."""

    def __init__(
        self, coordinator: Coordinator, client_stall_seconds: float, tokens: TokenTable | None = None
    ) -> None:
        self._coordinator = coordinator
        self._tokens = tokens
        self._client_stall_seconds = client_stall_seconds
        self._statuses: set[asyncio.Task[None]] = set()

    def service(self, others: Mapping[str, grpc.RpcMethodHandler[Any, Any]] | None = None) -> rpc.Service:
        """All methods, with `others` beside its own."""
        return rpc.Service(
            NAME,
            {
                "Generate": rpc.server_stream(pb.GenerateRequest, self.generate),
                "Abort": rpc.unary(pb.AbortRequest, self.abort),
                "SetSpeculation": rpc.unary(pb.SetSpeculationRequest, self.set_speculation),
                "ListModels": rpc.unary(pb.ListModelsRequest, self.list_models),
                "GetServerInfo": rpc.unary(pb.GetServerInfoRequest, self.get_server_info),
                "Tokenize": rpc.unary(pb.TokenizeRequest, self.tokenize),
                **(others or {}),
            },
        )

    async def generate(
        self, message: pb.GenerateRequest, context: rpc.Context
    ) -> AsyncIterator[pb.GenerateResponse]:
        call = asyncio.current_task()
        generation = await self._coordinator.admit(message, self._tenant(context))
        reader = generation.attach()

        def on_done(_: rpc.Context) -> None:
            generation.detach(reader)

        # Also when the client goes away while nothing is sent: then no exception reaches this frame.
        add_done_callback: Any = context.add_done_callback
        add_done_callback(on_done)
        watch = asyncio.create_task(self._cut_when_stalled(reader, context, call))
        deadline = _arm_deadline(generation, reader, context)
        try:
            async for response in reader.messages():
                yield response
        finally:
            watch.cancel()
            if deadline is not None:
                deadline.cancel()
            generation.detach(reader)

    def _tenant(self, context: rpc.Context) -> str:
        """Whose call this is. The port lets none without a known token pass, where tokens are asked for."""
        if self._tokens is None:
            return NOBODY
        tenant = self._tokens.tenant_of(bearer_token(context.invocation_metadata() or ()))
        if tenant is None:
            raise Unauthenticated("no valid bearer token")
        return tenant

    async def _cut_when_stalled(
        self, reader: Outlet, context: rpc.Context, call: asyncio.Task[object] | None
    ) -> None:
        """Ends a call whose client has stopped reading; other readers of the request go on.

        Cancelled by `generate` when the client has read everything. The status is queued before the
        call is cancelled: a cancelled call alone sends none, and a client that reads again later would
        wait for ever.
        """
        was_waiting, num_taken = False, -1
        while not (was_waiting and reader.num_taken == num_taken):
            was_waiting, num_taken = reader.is_waiting, reader.num_taken
            await asyncio.sleep(self._client_stall_seconds)
        status = asyncio.create_task(_send_cancelled(context))
        self._statuses.add(status)
        status.add_done_callback(self._statuses.discard)
        await asyncio.wait({status}, timeout=_STATUS_SECONDS)
        if call is not None:
            call.cancel()

    async def abort(self, message: pb.AbortRequest, context: rpc.Context) -> pb.AbortResponse:
        return pb.AbortResponse(found=self._coordinator.abort(message.request_id, self._tenant(context)))

    async def set_speculation(
        self, message: pb.SetSpeculationRequest, context: rpc.Context
    ) -> pb.SetSpeculationResponse:
        found = self._coordinator.set_speculation(message, self._tenant(context))
        return pb.SetSpeculationResponse(found=found)

    async def list_models(self, message: pb.ListModelsRequest, context: rpc.Context) -> pb.ListModelsResponse:
        return self._coordinator.models()

    async def get_server_info(
        self, message: pb.GetServerInfoRequest, context: rpc.Context
    ) -> pb.GetServerInfoResponse:
        return self._coordinator.info()

    async def tokenize(self, message: pb.TokenizeRequest, context: rpc.Context) -> pb.TokenizeResponse:
        return pb.TokenizeResponse(token_ids=await self._coordinator.tokenize(message))


def _arm_deadline(generation: Generation, reader: Outlet, context: rpc.Context) -> asyncio.TimerHandle | None:
    """Ends the request, or this reader of it, just before the caller's deadline."""
    seconds = context.time_remaining()
    if seconds is None:
        return None

    def expire() -> None:
        error = TimedOut(f"the caller's deadline came {seconds:.3g} s after the request: allow more time")
        if generation.is_last_reader(reader):
            generation.abort(error)
        else:
            reader.close(error)

    margin = min(_DEADLINE_MARGIN_SECONDS, seconds / 10)
    return asyncio.get_running_loop().call_later(max(seconds - margin, 0.0), expire)


async def _send_cancelled(context: rpc.Context) -> None:
    """Queues the status behind what the client has not read yet."""
    with contextlib.suppress(grpc.aio.AbortError, grpc.aio.UsageError):
        await context.abort(grpc.StatusCode.CANCELLED, "the client stopped reading")
