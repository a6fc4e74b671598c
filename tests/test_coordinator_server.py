"""The public service over real gRPC: whole requests, errors, aborts, health, drain."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2
from grpc_status import rpc_status

from coordinator.client import Answer, AsyncClient, ClientOptions
from coordinator.startup import RunningCoordinator, start_coordinator
from protos import coordinator_pb2, draft_pb2, rpc, target_pb2
from protos.common_pb2 import FINISH_REASON_ABORT, FINISH_REASON_LENGTH, FINISH_REASON_STOP
from protos.errors import AlreadyExists, Busy, DliteError, InvalidRequest, Unavailable
from tests.coordinator_fakes import TableEngine, counting, cycling, saying
from tests.coordinator_harness import (
    DraftServer,
    TargetServer,
    describe_drafter,
    make_config,
    request,
    serve_drafter,
    serve_target,
    until,
)

OFF = coordinator_pb2.SPECULATION_MODE_OFF


@asynccontextmanager
async def stack(
    engine: TableEngine, **config: Any
) -> AsyncIterator[tuple[AsyncClient, RunningCoordinator, TargetServer]]:
    async with serve_target(engine) as (address, target):
        running = await start_coordinator(make_config(target_address=address, **config))
        try:
            async with AsyncClient(running.address) as client:
                yield client, running, target
        finally:
            await running.stop()


@asynccontextmanager
async def drafted_stack(
    engine: TableEngine, server: DraftServer
) -> AsyncIterator[tuple[AsyncClient, RunningCoordinator, TargetServer]]:
    async with serve_drafter(server) as address, stack(engine, draft_address=address) as everything:
        yield everything


def wrong_from(engine: TableEngine, num_right: int) -> Any:
    """A drafter whose first `num_right` proposals are right."""

    def propose(item: draft_pb2.ProposeItem) -> draft_pb2.Proposal:
        sequence = engine.sequences[item.request_id]
        generated = sequence.tokens[sequence.num_prompt :]
        tokens: list[int] = []
        for index in range(item.k):
            right = engine.decide(generated + tokens)
            tokens.append(right if index < num_right else (right + 1) % 250)
        return draft_pb2.Proposal(
            request_id=item.request_id, epoch=item.epoch, round=item.round, tokens=tokens
        )

    return propose


async def test_text_streams_and_equals_the_whole() -> None:
    text = "日本 is a text with a 👍🏽 and more text, with a 👍🏽"
    engine = TableEngine(saying(text))
    async with drafted_stack(engine, DraftServer(wrong_from(engine, 3))) as (client, _, _):
        answer = await client.complete(
            coordinator_pb2.GenerateRequest(prompt="hi", temperature=0.0, request_id="mine")
        )
        assert answer.request_id == "mine"
        assert answer.text == text
        assert answer.finish_reason == FINISH_REASON_STOP
        assert answer.finished.ledger.accept_length > 1
        assert answer.finished.ledger.draft_bytes > 0
        assert answer.finished.ledger.feature_bytes > 0
        assert answer.finished.usage.decode_ms > 0
        info = await client.server_info()
        assert info.drafter_connected
        assert info.drafter == describe_drafter()
        assert (info.default_num_draft_tokens, info.default_verify_block_size) == (8, 9)
        assert info.num_running == 0


async def test_many_requests_at_once() -> None:
    engine = TableEngine(cycling(17))
    async with drafted_stack(engine, DraftServer(wrong_from(engine, 2))) as (client, running, _):
        messages = [request(max_tokens=40 + i % 7, k=1 + i % 5) for i in range(24)]
        answers = await asyncio.gather(*(client.complete(message) for message in messages))
        for message, answer in zip(messages, answers, strict=True):
            assert answer.token_ids == [i % 17 for i in range(message.max_tokens)]
        assert running.coordinator.num_running == 0
    assert not engine.sequences


async def test_streams_cut_again_and_again_leave_no_gap() -> None:
    engine = TableEngine(counting)
    rng = random.Random(3)
    async with stack(engine) as (client, _, target):

        def cut_sometimes(event: target_pb2.Event) -> list[target_pb2.Event]:
            if rng.random() < 0.01:
                asyncio.get_running_loop().create_task(target.cut())
            return [event]

        target.on_event = cut_sometimes
        messages = [request(max_tokens=100, mode=OFF) for _ in range(4)]
        answers = await asyncio.gather(*(client.complete(message) for message in messages))
        assert all(answer.token_ids == list(range(100)) for answer in answers)
        assert target.num_streams > 1


def details_of(error: grpc.RpcError) -> dict[str, Any]:
    status = rpc_status.from_call(error)
    assert status is not None
    found: dict[str, Any] = {}
    for detail in status.details:
        for kind in (error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo, error_details_pb2.BadRequest):
            if detail.Is(kind.DESCRIPTOR):
                message = kind()
                detail.Unpack(message)
                found[kind.__name__] = message
    return found


async def test_errors_have_codes_and_details() -> None:
    async with stack(TableEngine(), max_running=1) as (client, _, _):
        with pytest.raises(InvalidRequest, match="top_p"):
            await client.complete(request(top_p=3.0))
        channel = client._channel
        method: Any = channel.unary_stream("/dlite.v1.Coordinator/Generate")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(request(n=0).SerializeToString()).read()
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert details_of(caught.value)["BadRequest"].field_violations[0].field == "n"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(b"\xff\xff garbage").read()
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def hanging(client: AsyncClient, engine: TableEngine, **fields: Any) -> tuple[Any, Any]:
    """A request that is running and has given its first token."""
    stream = client.generate(request(mode=OFF, **fields))
    started = await anext(stream)
    return stream, started


async def test_an_id_that_runs_is_taken_and_a_full_house_says_when_to_retry() -> None:
    engine = TableEngine()
    engine.step = lambda: []  # type: ignore[method-assign]
    async with stack(engine, max_running=1, max_waiting=0, drain_seconds=0) as (client, _, _):
        stream, started = await hanging(client, engine, request_id="mine", max_tokens=50)
        assert started.started.request_id == "mine"
        assert len(started.started.sampling_key) == 16
        with pytest.raises(AlreadyExists):
            await client.complete(request(request_id="mine"))
        method: Any = client._channel.unary_stream("/dlite.v1.Coordinator/Generate")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(request().SerializeToString()).read()
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert details_of(caught.value)["RetryInfo"].retry_delay.seconds == 1
        with pytest.raises(Busy):
            await client.complete(request())
        await stream.aclose()


async def test_abort_ends_the_stream_with_finished() -> None:
    engine = TableEngine()
    engine.step = lambda: []  # type: ignore[method-assign]
    async with stack(engine) as (client, running, _):
        stream, started = await hanging(client, engine, max_tokens=50)
        assert await client.abort(started.started.request_id)
        messages = [message async for message in stream]
        assert messages[-1].finished.finish_reason == FINISH_REASON_ABORT
        assert messages[-1].finished.usage.completion_tokens == 1
        assert not await client.abort("nobody")
        assert running.coordinator.num_running == 0


async def test_a_client_that_goes_away_aborts_its_request() -> None:
    engine = TableEngine()
    engine.step = lambda: []  # type: ignore[method-assign]
    async with stack(engine) as (client, running, _):
        stream, _ = await hanging(client, engine, max_tokens=50)
        assert running.coordinator.num_running == 1
        await stream.aclose()
        await until(lambda: not running.coordinator.num_running and not engine.sequences)
        assert engine.closes


async def test_a_client_that_never_reads_is_cut_off_and_nobody_waits() -> None:
    engine = TableEngine(counting)
    async with stack(engine, client_stall_seconds=0.3, max_queued_deltas=4) as (client, running, _):
        tokenizer: Any = running.coordinator._backends.tokenizer
        tokenizer.decode = lambda ids: "x" * 60_000 * len(ids)
        method: Any = client._channel.unary_stream("/dlite.v1.Coordinator/Generate")
        call = method(request(mode=OFF, max_tokens=500).SerializeToString())
        await until(lambda: running.coordinator.num_running == 1)
        await until(lambda: running.coordinator.num_running == 0)
        await until(lambda: not engine.sequences)
        assert await until_cancelled(call)


async def until_cancelled(call: Any) -> bool:
    """Whether a call that nobody reads is ended by the server."""
    await asyncio.sleep(2.0)
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return bool(error.code() == grpc.StatusCode.CANCELLED)
    return False


async def test_models_and_tokenize() -> None:
    async with stack(TableEngine()) as (client, _, _):
        model = (await client.list_models()).models[0]
        assert (model.id, model.max_context) == ("models/table", 512)
        ids = await client.tokenize(coordinator_pb2.TokenizeRequest(prompt="日本"))
        assert len(ids) == 6
        message = {"role": "user", "content": "x" * 20_000}
        chat = await client.tokenize(coordinator_pb2.TokenizeRequest(messages=[message]))
        assert len(chat) > 20_000
        with pytest.raises(InvalidRequest):
            await client.tokenize(coordinator_pb2.TokenizeRequest())


async def health_of(address: str) -> int:
    async with rpc.open_channel(address) as channel:
        method: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
        request_bytes = health_pb2.HealthCheckRequest(service="dlite.v1.Coordinator").SerializeToString()
        return int(health_pb2.HealthCheckResponse.FromString(await method(request_bytes)).status)


async def until_health(address: str, status: int) -> None:
    while await health_of(address) != status:
        pass


async def test_health_follows_the_target() -> None:
    serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    async with serve_target(TableEngine()) as (address, _):
        running = await start_coordinator(make_config(target_address=address))
        assert await health_of(running.address) == serving
    await until_health(running.address, not_serving)
    async with AsyncClient(running.address) as client:
        with pytest.raises(Unavailable):
            await client.complete(request())
    async with serve_target(TableEngine(), address):
        await until_health(running.address, serving)
        async with AsyncClient(running.address) as client:
            answer = await client.complete(request(max_tokens=3))
        assert answer.finish_reason == FINISH_REASON_LENGTH
        await running.stop()


async def rest_of(stream: Any) -> tuple[Answer, DliteError | None]:
    answer = Answer()
    try:
        async for message in stream:
            answer.add(message)
    except DliteError as error:
        return answer, error
    return answer, None


async def test_a_target_that_stays_away_is_an_error_at_the_end_of_patience() -> None:
    async with serve_target(TableEngine()) as (address, target):
        running = await start_coordinator(make_config(target_address=address, target_loss_seconds=0.2))
        target.engine.step = lambda: []  # type: ignore[method-assign]
        client = AsyncClient(running.address, options=ClientOptions(patience_seconds=0))
        stream, _ = await hanging(client, target.engine, max_tokens=50)
    answer, failure = await rest_of(stream)
    assert isinstance(failure, Unavailable)
    assert "no connection to the target" in str(failure)
    assert answer.is_finished
    await client.__aexit__(None, None, None)
    await running.stop()


async def test_drain_lets_running_requests_end_and_refuses_new_ones() -> None:
    engine = TableEngine()
    step, engine.step = engine.step, lambda: []  # type: ignore[method-assign]
    async with serve_target(engine) as (address, target):
        running = await start_coordinator(make_config(target_address=address, drain_seconds=20))
        client = AsyncClient(running.address)
        stream, _ = await hanging(client, engine, max_tokens=30)
        stopping = asyncio.create_task(running.stop())
        while not isinstance((await rest_of(client.generate(request(max_tokens=1))))[1], Unavailable):
            pass
        engine.step = step  # type: ignore[method-assign]
        tokens = [token async for message in stream for token in message.delta.token_ids]
        assert len(tokens) == 30
        await stopping
        assert target.ended == ["shutting down"]
        await client.__aexit__(None, None, None)


async def test_no_target_is_a_clear_error() -> None:
    with pytest.raises(Unavailable, match=r"no target answers at 127\.0\.0\.1:1 within 0\.3 s"):
        await start_coordinator(make_config(target_address="127.0.0.1:1", connect_seconds=0.3))


async def test_a_missing_or_wrong_drafter_is_a_warning() -> None:
    engine = TableEngine()
    server = DraftServer(wrong_from(engine, 3))
    server.describe = describe_drafter(hidden_size=99)
    async with drafted_stack(engine, server) as (client, _, _):
        answer = await client.complete(request(max_tokens=5))
        assert answer.token_ids == list(range(5))
        info = await client.server_info()
        assert not info.drafter_connected
        assert "hidden_size" in info.warnings[0]
    async with stack(engine, draft_address="127.0.0.1:1", connect_seconds=0.3) as (client, _, _):
        answer = await client.complete(request(max_tokens=5))
        assert answer.token_ids == list(range(5))
