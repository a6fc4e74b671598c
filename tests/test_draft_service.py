"""The draft service over real gRPC on loopback: items, description, start and stop."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from draft_service.config import DraftConfig
from draft_service.server import serve, start_draft_service
from draft_service.service import DraftService
from protos import codec, common_pb2, draft_pb2, rpc
from protos.errors import ContractMismatch, Unavailable
from tests.draft_client import (
    GOOD,
    NAME,
    Client,
    items,
    message_of,
    replay_item,
    serving,
    until,
)
from tests.golden_draft import GOLDEN, TARGET, drafter
from tests.test_draft_batcher import TEXT, BrokenDrafter, Clock, GatedDrafter, entered


async def test_greedy_and_coupled_over_the_wire(draft_client: Client) -> None:
    await draft_client.send_items(*[message_of(item, i) for i, item in enumerate(items())])
    found = await draft_client.proposals(len(items()))
    for i, item in enumerate(items()):
        (expected,) = drafter(NAME).propose([item])
        assert tuple(found[i].tokens) == expected.tokens
        assert list(found[i].probabilities) == pytest.approx(expected.probabilities, abs=1e-5)
        assert (found[i].request_id, found[i].epoch) == ("golden", 5)
        assert found[i].timing.total_us >= found[i].timing.queue_us
        assert not found[i].HasField("refusal")
    # Every batch is told once, with its size: the sizes add up to the items.
    batches = {one.timing.step: one.timing for one in found.values()}
    assert sum(timing.step_rows for timing in batches.values()) == len(found), batches
    assert all(timing.total_us >= timing.step_us for timing in batches.values())
    await draft_client.end()


async def test_answers_still_come_after_an_end_frame(draft_client: Client) -> None:
    await draft_client.send_items(*[message_of(item, i) for i, item in enumerate(items())])
    await draft_client.send(end=common_pb2.End())
    assert len(await draft_client.proposals(len(items()))) == len(items())
    last = await draft_client.receive()
    assert last is not None
    assert last.WhichOneof("body") == "end"


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "int8"])
async def test_feature_dtypes(draft_client: Client, dtype: str) -> None:
    item = items()[0]
    assert item.features is not None
    encoded = codec.encode(item.features, dtype)
    await draft_client.send_items(message_of(replace(item, features=None), 1, features=encoded))
    found = await draft_client.proposals(1)
    decoded = codec.decode(encoded).float()
    (expected,) = drafter(NAME).propose([replace(item, features=decoded)])
    assert tuple(found[1].tokens) == expected.tokens


BAD: dict[str, dict[str, Any]] = {
    "k": {"k": 8},
    "max_law_entries": {
        "mode": common_pb2.MODE_REJECTION,
        "sampling_key": bytes(16),
        "temperature": 1.0,
        "max_law_entries": 1025,
    },
    "recent_tokens": {"recent_tokens": [1]},
    "features.dtype": {"features": common_pb2.Tensor(dtype="f8")},
    "features.data": {"features": common_pb2.Tensor(data=b"1234")},
    "position": {"position": 2**64 - 1},
}


@pytest.mark.parametrize("field", BAD)
async def test_a_bad_item_beside_a_good_one(draft_client: Client, field: str) -> None:
    good, bad = message_of(GOOD, 1), message_of(GOOD, 2)
    bad.MergeFrom(draft_pb2.ProposeItem(**BAD[field]))
    await draft_client.send_items(bad, good)
    found = await draft_client.proposals(2)
    assert found[2].refusal.field == field
    assert list(found[2].tokens) == []
    assert len(found[1].tokens) == GOOD.k
    await draft_client.end()


async def test_unset_mode_and_missing_features_are_named(draft_client: Client) -> None:
    unset = message_of(GOOD, 1)
    unset.mode = common_pb2.MODE_UNSPECIFIED
    await draft_client.send_items(unset, message_of(replace(GOOD, features=None), 2))
    found = await draft_client.proposals(2)
    assert found[1].refusal.field == "mode"
    assert found[2].refusal.field == "features"


async def test_a_late_item_is_dropped_and_the_next_answered() -> None:
    gated, clock = GatedDrafter(), Clock()
    async with serving(DraftService(gated, now_seconds=clock)) as (running, channel):
        client = Client(channel)
        await client.hello()
        await client.send_items(replay_item(0))
        await entered(gated)
        late = replay_item(1)
        late.time_left_ms = 1
        await client.send_items(late, replay_item(2))
        await until(lambda: len(running.service.batcher) == 2)
        clock.now += 0.001
        gated.gate.set()
        assert set(await client.proposals(2)) == {0, 2}
        await client.end()


async def test_a_stopping_service_says_so() -> None:
    running = await serve(DraftService(drafter(NAME)), "127.0.0.1:0")
    channel = rpc.open_channel(running.address)
    client = Client(channel)
    await client.hello()
    stopping = asyncio.create_task(running.stop())
    message = await client.receive()
    assert message is not None
    assert message.WhichOneof("body") == "end"
    assert await client.receive() is None
    await stopping
    await channel.close()


async def test_description_and_welcome(draft_channel: grpc.aio.Channel) -> None:
    call = draft_channel.unary_unary("/dlite.v1.Draft/GetDescription")
    described = common_pb2.Describe.FromString(await call(b""))
    welcome = await Client(draft_channel).hello(coordinator="d")
    assert welcome.describe == described
    assert len(welcome.instance_id) == 32
    assert list(described.tapped_layers) == [0, 1, 4, 5]
    assert (described.vocab_size, described.hidden_size, described.num_layers) == (256, 64, 6)
    assert (described.block_size, described.anchor_group_size) == (8, 2)
    assert described.drafter_kind == "dlite_v1"
    assert described.noise_version == 1
    assert len(described.embedding_hash) == len(described.fingerprint) == 64
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(b"\xff")
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_health_is_ready_after_start() -> None:
    config = DraftConfig(drafter=GOLDEN / NAME, target=TARGET)
    running = await start_draft_service(config)
    async with rpc.open_channel(running.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", "dlite.v1.Draft"):
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
    await running.stop()


async def test_a_failed_self_test_does_not_serve() -> None:
    with pytest.raises(ContractMismatch, match="useless"):
        await serve(DraftService(BrokenDrafter()), "127.0.0.1:0")


async def test_a_taken_port() -> None:
    async with serving(DraftService(drafter(NAME))) as (running, _):
        with pytest.raises(Unavailable, match=running.address):
            await serve(DraftService(drafter(NAME)), running.address)


async def test_replay_from_a_config(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    file.write_text(json.dumps({"request_id": "r", "token_ids": TEXT}))
    config = DraftConfig(replay=file, acceptance="1,1,0", target=TARGET)
    running = await start_draft_service(config)
    async with rpc.open_channel(running.address) as channel:
        client = Client(channel)
        welcome = await client.hello()
        assert welcome.describe.drafter_kind == "replay"
        assert (welcome.describe.block_size, welcome.describe.vocab_size) == (4, 256)
        item = replay_item(10)
        item.k = 3
        await client.send_items(item)
        tokens = list((await client.proposals(1))[10].tokens)
        assert tokens[:2] == [11, 12]
        assert tokens[2] != 13
        await client.end()
    await running.stop()
