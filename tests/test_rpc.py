"""The gRPC set-up every service shares (pitfalls F1, F2, F3) and the errors on the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status

from protos import common_pb2, coordinator_pb2, errors, rpc
from protos.statuses import error_from, to_status

NAME = "dlite.v1.Coordinator"
DEADLINE_SECONDS = 5.0


async def tokenize(request: coordinator_pb2.TokenizeRequest, context: rpc.Context) -> Any:
    """A handler whose behaviour the prompt names."""
    match request.prompt:
        case "refuse":
            raise errors.InvalidRequest("must be below 2, got 3", field="temperature")
        case "busy":
            raise errors.OutOfPages("0 of 8 pages are free", retry_after_seconds=1.5)
        case "cancelled":
            raise asyncio.CancelledError
        case "bug":
            raise RuntimeError("secret of the implementation")
    return coordinator_pb2.TokenizeResponse(token_ids=[len(request.prompt)])


async def generate(request: coordinator_pb2.GenerateRequest, context: rpc.Context) -> AsyncIterator[Any]:
    yield coordinator_pb2.GenerateResponse(started=coordinator_pb2.Started(request_id=request.prompt))
    if request.prompt == "fail":
        raise errors.Unavailable("the target is gone")


async def echo(context: rpc.Context) -> None:
    while isinstance(data := await context.read(), bytes):
        rpc.parse(common_pb2.Hello, data)
        await context.write(data)


@pytest.fixture
async def server() -> AsyncIterator[rpc.RunningServer]:
    methods = {
        "Tokenize": rpc.unary(coordinator_pb2.TokenizeRequest, tokenize),
        "Generate": rpc.server_stream(coordinator_pb2.GenerateRequest, generate),
        "Echo": rpc.duplex(echo),
    }
    running = await rpc.start_server(rpc.Service(NAME, methods), "127.0.0.1:0")
    yield running
    await running.stop(0)


@pytest.fixture
async def channel(server: rpc.RunningServer) -> AsyncIterator[grpc.aio.Channel]:
    async with rpc.open_channel(server.address) as channel:
        yield channel


async def call(channel: grpc.aio.Channel, data: bytes, seconds: float = DEADLINE_SECONDS) -> bytes:
    return await channel.unary_unary(f"/{NAME}/Tokenize")(data, timeout=seconds)


async def failure(channel: grpc.aio.Channel, data: bytes) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(channel, data)
    return caught.value


def prompt(text: str) -> bytes:
    return coordinator_pb2.TokenizeRequest(prompt=text).SerializeToString()


@pytest.mark.parametrize("garbage", [b"\xff", b"\x0a\x05ab", b"\x00" * 100, b"\x08", b'{"prompt": 1}'])
async def test_garbage_is_an_invalid_argument_that_names_the_message(
    channel: grpc.aio.Channel, garbage: bytes
) -> None:
    error = await failure(channel, garbage)
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "dlite.v1.TokenizeRequest" in error.details()
    assert str(len(garbage)) in error.details()


async def test_garbage_on_a_server_stream_is_an_invalid_argument(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in channel.unary_stream(f"/{NAME}/Generate")(b"\xff", timeout=DEADLINE_SECONDS):
            pass
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_garbage_on_a_long_stream_is_an_invalid_argument(channel: grpc.aio.Channel) -> None:
    stream = channel.stream_stream(f"/{NAME}/Echo")(timeout=DEADLINE_SECONDS)
    hello = common_pb2.Hello(coordinator_id="c").SerializeToString()
    await stream.write(hello)
    assert await stream.read() == hello
    await stream.write(b"\xff")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.read()
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_the_server_lives_on_after_garbage(channel: grpc.aio.Channel) -> None:
    for _ in range(20):
        await failure(channel, b"\xff\xff")
    answer = coordinator_pb2.TokenizeResponse.FromString(await call(channel, prompt("four")))
    assert list(answer.token_ids) == [4]


def exactly(num_bytes: int) -> bytes:
    """A TokenizeRequest of this encoded size."""
    overhead = len(prompt("x" * (num_bytes - 10))) - (num_bytes - 10)
    data = prompt("x" * (num_bytes - overhead))
    assert len(data) == num_bytes
    return data


@pytest.mark.parametrize("num_bytes", [4 * 1024 * 1024 + 1, rpc.MAX_MESSAGE_BYTES - 1, rpc.MAX_MESSAGE_BYTES])
async def test_a_message_up_to_the_limit_passes(channel: grpc.aio.Channel, num_bytes: int) -> None:
    answer = coordinator_pb2.TokenizeResponse.FromString(await call(channel, exactly(num_bytes), 60.0))
    assert list(answer.token_ids) == [num_bytes - 5]


@pytest.mark.parametrize("limited", ["client", "server"])
async def test_a_message_above_the_limit_names_both_sizes(server: rpc.RunningServer, limited: str) -> None:
    options = rpc.CHANNEL_OPTIONS if limited == "client" else [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(server.address, options=options) as channel:
        error = await failure(channel, exactly(rpc.MAX_MESSAGE_BYTES + 1))
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert str(rpc.MAX_MESSAGE_BYTES) in error.details()
        assert str(rpc.MAX_MESSAGE_BYTES + 1) in error.details()
        await call(channel, prompt("alive"))


async def test_the_limits_hold_in_both_directions(channel: grpc.aio.Channel) -> None:
    stream = channel.stream_stream(f"/{NAME}/Echo")(timeout=60.0)
    big = common_pb2.Hello(coordinator_id="x" * (5 * 1024 * 1024)).SerializeToString()
    await stream.write(big)
    assert await stream.read() == big
    await stream.done_writing()


def details(error: grpc.aio.AioRpcError) -> dict[str, Any]:
    status = rpc_status.from_call(error)
    assert status is not None
    found = {}
    for kind in (error_details_pb2.ErrorInfo, error_details_pb2.BadRequest, error_details_pb2.RetryInfo):
        for detail in status.details:
            message = kind()
            if detail.Unpack(message):
                found[kind.__name__] = message
    return found


async def test_an_error_carries_reason_and_field(channel: grpc.aio.Channel) -> None:
    error = await failure(channel, prompt("refuse"))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    found = details(error)
    assert (found["ErrorInfo"].domain, found["ErrorInfo"].reason) == ("dlite", "INVALID_REQUEST")
    assert [v.field for v in found["BadRequest"].field_violations] == ["temperature"]
    assert "RetryInfo" not in found
    back = error_from(error)
    assert isinstance(back, errors.InvalidRequest)
    assert (back.field, back.retry_after_seconds) == ("temperature", None)
    assert "temperature: must be below 2, got 3" in str(back)


async def test_an_error_says_when_to_retry_only_where_waiting_helps(channel: grpc.aio.Channel) -> None:
    error = await failure(channel, prompt("busy"))
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert details(error)["RetryInfo"].retry_delay.ToMilliseconds() == 1500
    back = error_from(error)
    assert isinstance(back, errors.OutOfPages)
    assert back.retry_after_seconds == 1.5


@pytest.mark.parametrize("kind", errors.DliteError.__subclasses__(), ids=lambda kind: kind.__name__)
def test_every_error_of_the_tree_has_a_status_that_is_neither_unknown_nor_internal(
    kind: type[errors.DliteError],
) -> None:
    code = to_status(kind("numbers and advice")).code
    assert code not in (grpc.StatusCode.UNKNOWN.value[0], grpc.StatusCode.INTERNAL.value[0], 0)


async def test_a_cancelled_handler_ends_the_call(channel: grpc.aio.Channel) -> None:
    """Without an explicit status the caller would wait until its deadline."""
    error = await failure(channel, prompt("cancelled"))
    assert error.code() == grpc.StatusCode.CANCELLED


async def test_a_bug_shows_a_reference_and_no_python_message(
    channel: grpc.aio.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    error = await failure(channel, prompt("bug"))
    assert error.code() == grpc.StatusCode.INTERNAL
    assert "secret" not in error.details()
    reference = error.details().split("reference ")[1].split()[0]
    assert reference in caplog.text
    assert "secret of the implementation" in caplog.text


async def test_an_error_after_the_first_message_ends_the_stream(channel: grpc.aio.Channel) -> None:
    request = coordinator_pb2.GenerateRequest(prompt="fail").SerializeToString()
    stream = channel.unary_stream(f"/{NAME}/Generate")(request, timeout=DEADLINE_SECONDS)
    assert isinstance(await stream.read(), bytes)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.read()
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert isinstance(error_from(caught.value), errors.Unavailable)


async def test_health_is_not_serving_until_ready(
    server: rpc.RunningServer, channel: grpc.aio.Channel
) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    status = health_pb2.HealthCheckResponse
    for ready, expected in ((False, status.NOT_SERVING), (True, status.SERVING), (False, status.NOT_SERVING)):
        await server.set_ready(ready)
        for name in ("", NAME):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=name), timeout=DEADLINE_SECONDS)
            assert answer.status == expected


async def test_reflection_lists_the_service(channel: grpc.aio.Channel) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    stream = stub.ServerReflectionInfo(timeout=DEADLINE_SECONDS)
    await stream.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    answer = await stream.read()
    assert NAME in {service.name for service in answer.list_services_response.service}
    await stream.done_writing()


def test_the_server_allows_the_clients_pings() -> None:
    """The C core's key; with the `min_recv_` spelling a quiet stream ends with too_many_pings."""
    server, client = dict(rpc.SERVER_OPTIONS), dict(rpc.CHANNEL_OPTIONS)
    assert "grpc.http2.min_recv_ping_interval_without_data_ms" not in server
    assert server["grpc.http2.min_ping_interval_without_data_ms"] <= client["grpc.keepalive_time_ms"]
    assert server["grpc.http2.max_ping_strikes"] == 0
    assert server["grpc.keepalive_permit_without_calls"] == client["grpc.keepalive_permit_without_calls"] == 1
    assert client["grpc.http2.max_pings_without_data"] == 0


def test_both_ends_have_the_same_limits() -> None:
    for name in ("grpc.max_receive_message_length", "grpc.max_send_message_length"):
        assert dict(rpc.SERVER_OPTIONS)[name] == dict(rpc.CHANNEL_OPTIONS)[name] == rpc.MAX_MESSAGE_BYTES


async def test_a_taken_port_is_a_clear_error(server: rpc.RunningServer) -> None:
    with pytest.raises(errors.Unavailable, match=server.address):
        await rpc.start_server(rpc.Service(NAME, {}), server.address)
