"""How every gRPC server and channel of the project is set up.

Handlers receive raw bytes and parse them here: with the generated deserialisers one undecodable
message ends a whole stream with a Python message in an INTERNAL status.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import _async as health_aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from grpc_status import rpc_status

from protos import errors
from protos.security import (
    Address,
    ClientSecurity,
    ServerSecurity,
    add_port,
    channel_credentials,
    guards,
    require_tokens_unseen,
)
from protos.statuses import to_status

# The health service's name for "gets on with its work".
LIVENESS = "liveness"
PROTOCOL_MAJOR = 1
PROTOCOL_MINOR = 0
# Designed for messages below 1 MiB; the limit leaves room for one long prompt in one message.
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
TARGET_MESSAGE_BYTES = 1024 * 1024

_SIZES = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
]
# For the answer to a ping the library waits `ping_timeout_ms`: a minute, whatever the keepalive's timeout is.
CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    *_SIZES,
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_retries", 0),
    # A restarted service is found again within a second, not after two minutes of back-off.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Each channel its own connection: a stalled stream never holds back another peer's.
    ("grpc.use_local_subchannel_pool", 1),
]
SERVER_OPTIONS: list[tuple[str, Any]] = [
    *_SIZES,
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
]

log = logging.getLogger("dlite.rpc")
M = TypeVar("M", bound=Message)
Context = grpc.aio.ServicerContext[Any, Any]


def parse(message_type: type[M], data: bytes) -> M:
    """Decodes a message.

    Raises:
        InvalidRequest: the bytes are no such message.
    """
    try:
        return message_type.FromString(data)
    except DecodeError as error:
        name = message_type.DESCRIPTOR.full_name
        raise errors.InvalidRequest(f"{len(data)} bytes are not a {name}", field=name) from error


async def abort(context: Context, error: BaseException) -> NoReturn:
    """Ends a call with the right status. Never shows a Python message to a caller."""
    if isinstance(error, asyncio.CancelledError):
        # Without an explicit status the caller would wait for ever (grpc issue 29248).
        await context.abort(grpc.StatusCode.CANCELLED, "the call was cancelled")
    if isinstance(error, errors.DliteError):
        await context.abort_with_status(rpc_status.to_status(to_status(error)))
    reference = uuid.uuid4().hex[:12]
    log.exception("internal error %s", reference, exc_info=error)
    await context.abort(
        grpc.StatusCode.INTERNAL, f"internal error, reference {reference} in the service's log"
    )
    raise AssertionError("unreachable: abort raises")


def unary(
    request_type: type[M], handler: Callable[[M, Context], Awaitable[Message]]
) -> grpc.RpcMethodHandler[Any, Any]:
    """A unary method over raw bytes."""

    async def call(data: bytes, context: Context) -> bytes:
        try:
            return (await handler(parse(request_type, data), context)).SerializeToString()
        except grpc.aio.AbortError:
            raise
        except (Exception, asyncio.CancelledError) as error:
            await abort(context, error)

    return grpc.unary_unary_rpc_method_handler(call)


def server_stream(
    request_type: type[M], handler: Callable[[M, Context], AsyncIterator[Message]]
) -> grpc.RpcMethodHandler[Any, Any]:
    """A server-streaming method over raw bytes."""

    async def call(data: bytes, context: Context) -> AsyncIterator[bytes]:
        try:
            async for message in handler(parse(request_type, data), context):
                yield message.SerializeToString()
        except grpc.aio.AbortError:
            raise
        except (Exception, asyncio.CancelledError) as error:
            await abort(context, error)

    return grpc.unary_stream_rpc_method_handler(call)


def duplex(handler: Callable[[Context], Awaitable[None]]) -> grpc.RpcMethodHandler[Any, Any]:
    """A bidirectional method; the handler reads and writes raw bytes on the context itself."""

    async def call(_requests: AsyncIterator[bytes], context: Context) -> None:
        try:
            await handler(context)
        except grpc.aio.AbortError:
            raise
        except (Exception, asyncio.CancelledError) as error:
            await abort(context, error)

    return grpc.stream_stream_rpc_method_handler(call)


@dataclass(frozen=True)
class Service:
    """One gRPC service: its full name ("dlite.v1.Target") and raw handlers by method name."""

    name: str
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]]


@dataclass(frozen=True)
class RunningServer:
    """A started server. It answers health checks NOT_SERVING until `set_ready`."""

    server: grpc.aio.Server
    health: health_aio.HealthServicer
    service: Service
    address: str

    async def set_ready(self, ready: bool) -> None:
        status = health_pb2.HealthCheckResponse
        value = status.SERVING if ready else status.NOT_SERVING
        await self.health.set("", value)
        await self.health.set(self.service.name, value)

    async def stop(self, grace_seconds: float) -> None:
        await self.health.enter_graceful_shutdown()
        await self.server.stop(grace_seconds)


async def start_server(
    service: Service, address: str, security: ServerSecurity | None = None
) -> RunningServer:
    """Starts a server with health and reflection.

    Args:
        service: what to serve.
        address: "host:port" (port 0 picks a free one) or "unix:PATH".
        security: what callers must show; None asks for nothing.

    Raises:
        Unavailable: the address cannot be bound.
        InvalidRequest: tokens would travel a network in the clear.
    """
    security = security or ServerSecurity()
    require_tokens_unseen(security, address)
    server = grpc.aio.server(options=SERVER_OPTIONS, interceptors=guards(security))
    handler = grpc.method_handlers_generic_handler(service.name, service.methods)
    server.add_generic_rpc_handlers((handler,))
    health_servicer = health_aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    names = (service.name, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
    try:
        port = add_port(server, address, security)
    except RuntimeError as error:
        raise errors.Unavailable(f"cannot listen on {address}: is the port taken?") from error
    await server.start()
    bound = address if address.startswith("unix:") else f"{address.rsplit(':', 1)[0]}:{port}"
    running = RunningServer(server, health_servicer, service, bound)
    await running.set_ready(False)
    # Whoever answers is alive; services whose work can hang beside the loop say more (`protos.liveness`).
    await running.health.set(LIVENESS, health_pb2.HealthCheckResponse.SERVING)
    return running


def open_channel(endpoint: Address) -> grpc.aio.Channel:
    """A channel with the project's limits. Must be called on the event loop that uses it.

    Raises:
        InvalidRequest: a token would travel in the clear.
    """
    address, security = _parts(endpoint)
    credentials = channel_credentials(address, security)
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
    return grpc.aio.secure_channel(address, credentials, options=CHANNEL_OPTIONS)


def open_blocking_channel(endpoint: Address) -> grpc.Channel:
    """The same for code without asyncio."""
    address, security = _parts(endpoint)
    credentials = channel_credentials(address, security)
    if credentials is None:
        return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
    return grpc.secure_channel(address, credentials, options=CHANNEL_OPTIONS)


def _parts(endpoint: Address) -> tuple[str, ClientSecurity]:
    if isinstance(endpoint, str):
        return endpoint, ClientSecurity()
    return endpoint.address, endpoint.security
