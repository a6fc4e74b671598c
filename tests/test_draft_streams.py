"""The life of a Propose stream: hello, generations, ends, garbage, sizes and floods."""

from __future__ import annotations

import asyncio
from collections import Counter

import grpc
import pytest

from draft_service.service import DraftService
from protos import common_pb2, draft_pb2, rpc
from tests.draft_client import (
    GOOD,
    NAME,
    WAIT_SECONDS,
    Client,
    message_of,
    replay_item,
    serving,
    until,
)
from tests.golden_draft import drafter
from tests.stream_gates import FLOOD_BYTES, FLOOD_MESSAGES, Flood, gate_reads, named, number_of
from tests.test_draft_batcher import GatedDrafter, entered


@pytest.mark.parametrize("data", [b"\xff\xff\xff", b"", b"\x12\x03\x0a\x01\xff"])
async def test_garbage_ends_that_stream_only(
    draft_channel: grpc.aio.Channel, draft_client: Client, data: bytes
) -> None:
    other = Client(draft_channel)
    await other.hello(coordinator="other")
    await other.call.write(data)
    code, details = await other.status()
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert "Traceback" not in details
    assert "Error" not in details
    await draft_client.send_items(message_of(GOOD, 1))
    assert len((await draft_client.proposals(1))[1].tokens) == GOOD.k


async def test_the_first_message_is_hello(draft_channel: grpc.aio.Channel) -> None:
    client = Client(draft_channel)
    await client.send_items(message_of(GOOD, 1))
    code, details = await client.status()
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert "hello" in details


async def test_a_second_hello_and_an_unnamed_coordinator(
    draft_channel: grpc.aio.Channel, draft_client: Client
) -> None:
    await draft_client.send(hello=common_pb2.Hello(coordinator_id="c", stream_generation=2))
    assert (await draft_client.status())[0] == grpc.StatusCode.INVALID_ARGUMENT
    nameless = Client(draft_channel)
    await nameless.send(hello=common_pb2.Hello(protocol=common_pb2.Protocol(major=1)))
    assert (await nameless.status())[0] == grpc.StatusCode.INVALID_ARGUMENT


async def test_another_protocol_major_is_refused(draft_channel: grpc.aio.Channel) -> None:
    client = Client(draft_channel)
    protocol = common_pb2.Protocol(major=2)
    await client.send(hello=common_pb2.Hello(coordinator_id="c", stream_generation=1, protocol=protocol))
    code, details = await client.status()
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert "protocol" in details


async def test_a_higher_generation_ends_the_older_stream(draft_channel: grpc.aio.Channel) -> None:
    old, other, new = Client(draft_channel), Client(draft_channel), Client(draft_channel)
    await old.hello(generation=3)
    await other.hello(generation=1, coordinator="other")
    await new.hello(generation=4)
    assert (await old.status())[0] == grpc.StatusCode.ABORTED
    for alive in (new, other):
        await alive.send_items(message_of(GOOD, 1))
        assert len(await alive.proposals(1)) == 1


@pytest.mark.parametrize("generation", [2, 3])
async def test_a_stale_generation_is_refused(draft_channel: grpc.aio.Channel, generation: int) -> None:
    held, stale = Client(draft_channel), Client(draft_channel)
    await held.hello(generation=3)
    hello = common_pb2.Hello(
        coordinator_id="c", stream_generation=generation, protocol=common_pb2.Protocol(major=1)
    )
    await stale.send(hello=hello)
    assert (await stale.status())[0] == grpc.StatusCode.ABORTED
    await held.send_items(message_of(GOOD, 1))
    assert len(await held.proposals(1)) == 1


async def test_eof_without_end_is_an_abort_and_frees_the_queue() -> None:
    gated = GatedDrafter()
    async with serving(DraftService(gated)) as (running, channel):
        client = Client(channel)
        await client.hello()
        await client.send_items(replay_item(0))
        await entered(gated)
        await client.send_items(*[replay_item(position) for position in range(1, 6)])
        await until(lambda: len(running.service.batcher) == 5)
        await client.call.done_writing()
        code, details = await client.status()
        assert code == grpc.StatusCode.ABORTED
        assert "end frame" in details
        assert len(running.service.batcher) == 0
        assert len(running.service.registry) == 0
        gated.gate.set()


async def test_a_cancelled_stream_leaves_nothing_behind() -> None:
    gated = GatedDrafter()
    async with serving(DraftService(gated)) as (running, channel):
        client = Client(channel)
        await client.hello()
        await client.send_items(replay_item(0))
        await entered(gated)
        await client.send_items(replay_item(1))
        client.call.cancel()
        await until(lambda: not len(running.service.registry) and not len(running.service.batcher))
        gated.gate.set()
        again = Client(channel)
        await again.hello(generation=1)
        await again.send_items(replay_item(3))
        assert list((await again.proposals(1))[3].tokens) == [4, 5, 6, 7]


def batch_of(num_bytes: int) -> bytes:
    """A ProposeBatch of exactly this size, with one item."""
    message = draft_pb2.ProposeBatch(items=draft_pb2.ProposeList(items=[message_of(GOOD, 1)]))
    item = message.items.items[0]
    item.features.data = bytes(num_bytes)
    item.features.data = bytes(num_bytes - (message.ByteSize() - num_bytes))
    assert message.ByteSize() == num_bytes
    return message.SerializeToString()


@pytest.mark.parametrize("num_bytes", [4 * 1024 * 1024 + 1, rpc.MAX_MESSAGE_BYTES])
async def test_messages_up_to_the_limit_arrive(draft_client: Client, num_bytes: int) -> None:
    await draft_client.call.write(batch_of(num_bytes))
    assert (await draft_client.proposals(1))[1].refusal.field == "features.data"
    await draft_client.end()


async def test_a_message_above_the_limit_names_both_sizes() -> None:
    async with serving(DraftService(drafter(NAME))) as (running, _):
        options = [("grpc.max_send_message_length", -1)]
        async with grpc.aio.insecure_channel(running.address, options=options) as generous:
            client = Client(generous)
            await client.hello()
            await client.call.write(batch_of(rpc.MAX_MESSAGE_BYTES + 1))
            code, details = await client.status()
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(rpc.MAX_MESSAGE_BYTES) in details
    assert str(rpc.MAX_MESSAGE_BYTES + 1) in details


@pytest.mark.parametrize("stall_seconds", [0.0, pytest.param(5.0, marks=pytest.mark.prove)])
async def test_a_flood_nobody_reads_drains(stall_seconds: float) -> None:
    """112 KiB items outstanding while the client does not read and the drafter does not answer."""
    gated = GatedDrafter()
    async with serving(DraftService(gated)) as (_, channel):
        client = Client(channel)
        await client.hello()
        for i in range(FLOOD_MESSAGES):
            message = replay_item(i % 50, padding_bytes=FLOOD_BYTES)
            message.round = i
            await asyncio.wait_for(client.send_items(message), WAIT_SECONDS)
        await asyncio.sleep(stall_seconds)
        gated.gate.set()
        found = await client.proposals(FLOOD_MESSAGES)
        assert all(list(found[i].tokens) == [i % 50 + j for j in range(1, 5)] for i in found)
        await client.end()


@pytest.mark.parametrize("stall_seconds", [0.5, pytest.param(5.0, marks=pytest.mark.prove)])
async def test_neither_side_reads_then_all_drains(
    monkeypatch: pytest.MonkeyPatch, stall_seconds: float
) -> None:
    # The service has 400 answers to send that nobody takes, the peer 400 items that nobody takes.
    gate = gate_reads(monkeypatch)
    async with serving(DraftService(drafter(NAME))) as (_, channel):
        client = Client(channel)
        await client.hello()

        async def write(number: int) -> None:
            item = message_of(GOOD, number, request_id=named(number))
            item.ClearField("features")
            await client.send_items(item)

        await Flood(write, range(FLOOD_MESSAGES)).end()
        gate.clear()
        flood = Flood(write, range(FLOOD_MESSAGES, 2 * FLOOD_MESSAGES))
        await asyncio.sleep(stall_seconds)  # the subject: nobody reads for a while
        assert not flood.task.done(), "somebody has read"
        gate.set()
        await flood.end()
        answered: Counter[int] = Counter()
        while answered.total() < 2 * FLOOD_MESSAGES:
            message = await client.receive()
            assert message is not None
            answered.update(number_of(one.request_id) for one in message.proposals.proposals)
        await client.end()
        assert answered == Counter(range(2 * FLOOD_MESSAGES))


async def test_one_stream_does_not_wait_for_another_that_does_not_read(
    draft_channel: grpc.aio.Channel,
) -> None:
    lazy, busy = Client(draft_channel), Client(draft_channel)
    await lazy.hello(coordinator="lazy")
    await busy.hello(coordinator="busy")
    for i in range(40):
        await lazy.send_items(*[message_of(GOOD, i)] * 20)
        await busy.send_items(message_of(GOOD, i))
        assert len(await busy.proposals(1)) == 1
