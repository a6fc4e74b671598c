"""Links on which nothing comes: a quiet peer is left alone (F2), one that has vanished is not (F5)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from coordinator.answer import Answer
from coordinator.client import AsyncClient, ClientOptions
from deploy.bench.fault_load import texts_of
from protos import rpc
from protos.errors import DliteError
from tests.fault_world import PROMPTS, coordinator, models

QUIET_SECONDS = 7.0
PING_MS = 1000
WAITS = ("grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms")
# With the library's own settings of a server the third ping is one too many.
PINGING = [("grpc.keepalive_time_ms", PING_MS), ("grpc.http2.max_pings_without_data", 0)]


class BlackHole:
    """A relay of bytes that swallows them, in both directions, once `is_open`."""

    def __init__(self) -> None:
        self.is_open = False
        self.address = ""
        self._writers: list[asyncio.StreamWriter] = []

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        while data := await reader.read(1 << 16):
            if not self.is_open:
                writer.write(data)
        writer.close()

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


@contextlib.asynccontextmanager
async def black_hole(address: str) -> AsyncIterator[BlackHole]:
    """In front of a service."""
    hole = BlackHole()
    host, _, port = address.rpartition(":")

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind = await asyncio.open_connection(host, int(port))
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(hole.pass_on(reader, behind[1]), hole.pass_on(behind[0], writer))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    hole.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield hole
    finally:
        hole.close()
        server.close()


async def first_message(options: list[tuple[str, Any]]) -> grpc.StatusCode | bytes:
    """Of a stream that is quiet before it, to a client that pings; or how the stream ends."""

    async def quiet(context: rpc.Context) -> None:
        await asyncio.sleep(QUIET_SECONDS)
        await context.write(b"at last")

    server = grpc.aio.server(options=options)
    handler = grpc.method_handlers_generic_handler("quiet.Q", {"Q": rpc.duplex(quiet)})
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    ours = [(name, value) for name, value in rpc.CHANNEL_OPTIONS if name not in dict(PINGING)]
    client_options = [*ours, *PINGING]
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=client_options) as channel:
            method: Any = channel.stream_stream("/quiet.Q/Q")
            data: bytes = await method(timeout=30).read()
            return data
    except grpc.aio.AioRpcError as error:
        return error.code()
    finally:
        await server.stop(0)


@pytest.mark.prove
async def test_pings_on_a_quiet_stream_do_not_end_it() -> None:
    assert await first_message(rpc.SERVER_OPTIONS) == b"at last"
    assert await first_message([]) is grpc.StatusCode.UNAVAILABLE, "or this test shows nothing"


@pytest.mark.parametrize("options", [rpc.SERVER_OPTIONS, rpc.CHANNEL_OPTIONS])
def test_the_timeout_of_a_ping_is_the_keepalives(options: list[tuple[str, Any]]) -> None:
    """Left to the library it is a minute, and a peer that has vanished is missed so much later."""
    _, timeout, ping_timeout = (dict(options)[name] for name in WAITS)
    assert ping_timeout == timeout == 5_000


@pytest.fixture
def keepalive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a second, where it is 25 otherwise."""
    quick = dict.fromkeys(WAITS, 500)
    monkeypatch.setattr(rpc, "CHANNEL_OPTIONS", [*(dict(rpc.CHANNEL_OPTIONS) | quick).items()])


@pytest.mark.usefixtures("keepalive")
async def test_a_stream_into_a_black_hole_ends_by_keepalive() -> None:
    async with models() as (target, _), black_hole(target) as hole, rpc.open_channel(hole.address) as channel:
        method: Any = channel.stream_stream("/dlite.v1.Target/Decode")
        call = method()
        await call.wait_for_connection()
        hole.is_open = True
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.usefixtures("keepalive")
async def test_a_drafter_in_a_black_hole_costs_no_text() -> None:
    """The round goes on without it; so does the rest of the text."""
    text = texts_of(PROMPTS[:1], 60)[0]
    async with (
        models() as (target, draft),
        black_hole(draft) as hole,
        coordinator(target, hole.address, draft_timeout_seconds=0.5) as running,
        AsyncClient(running.address) as client,
    ):
        expected = (await client.complete(text.request())).token_ids
        answer = Answer()
        async for message in client.generate(text.request()):
            answer.add(message)
            hole.is_open = hole.is_open or len(answer.token_ids) >= 10
    assert answer.token_ids == expected
    assert answer.finished.ledger.num_undrafted_rounds >= 1


@pytest.mark.usefixtures("keepalive")
async def test_a_target_in_a_black_hole_is_a_clean_error() -> None:
    text = texts_of(PROMPTS[:1], 60)[0]
    answer = Answer()
    async with (
        models() as (target, draft),
        black_hole(target) as hole,
        coordinator(hole.address, draft, target_loss_seconds=1.0) as running,
        AsyncClient(running.address, options=ClientOptions(patience_seconds=0)) as client,
    ):
        reason = ""
        try:
            async for message in client.generate(text.request()):
                answer.add(message)
                hole.is_open = hole.is_open or len(answer.token_ids) >= 10
        except DliteError as error:
            reason = error.reason
    assert reason == "UNAVAILABLE"
    assert len(answer.token_ids) >= 10
    assert answer.is_finished
