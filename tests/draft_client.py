"""A raw-bytes end of a Propose stream, and what to send on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import torch

from draft_service.proposal import DraftItem, DraftMode
from draft_service.server import RunningDraft, serve
from draft_service.service import DraftService
from protos import codec, common_pb2, draft_pb2, rpc
from tests.golden_draft import first_rounds
from tests.test_draft_batcher import TEXT

NAME = "draft_dlite_v1_g2"


MODES = {
    DraftMode.GREEDY: common_pb2.MODE_GREEDY,
    DraftMode.COUPLED: common_pb2.MODE_COUPLED,
    DraftMode.REJECTION: common_pb2.MODE_REJECTION,
}


PROPOSE = "/dlite.v1.Draft/Propose"


WAIT_SECONDS = 60


class Client:
    """A raw-bytes end of a Propose stream."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.call = channel.stream_stream(PROPOSE)()

    async def send(self, **body: Any) -> None:
        await self.call.write(draft_pb2.ProposeBatch(**body).SerializeToString())

    async def send_items(self, *items: draft_pb2.ProposeItem) -> None:
        await self.send(items=draft_pb2.ProposeList(items=items))

    async def receive(self) -> draft_pb2.ProposalBatch | None:
        data = await asyncio.wait_for(self.call.read(), WAIT_SECONDS)
        return None if data is grpc.aio.EOF else draft_pb2.ProposalBatch.FromString(data)

    async def hello(self, generation: int = 1, coordinator: str = "c", major: int = 1) -> common_pb2.Welcome:
        protocol = common_pb2.Protocol(major=major, minor=9)
        await self.send(
            hello=common_pb2.Hello(
                coordinator_id=coordinator, stream_generation=generation, protocol=protocol
            )
        )
        message = await self.receive()
        assert message is not None
        assert message.WhichOneof("body") == "welcome"
        return message.welcome

    async def proposals(self, count: int) -> dict[int, draft_pb2.Proposal]:
        """The next `count` proposals by round."""
        found: dict[int, draft_pb2.Proposal] = {}
        while len(found) < count:
            message = await self.receive()
            assert message is not None
            found.update({proposal.round: proposal for proposal in message.proposals.proposals})
        return found

    async def end(self) -> None:
        """A clean end: end frame both ways, then status OK."""
        await self.send(end=common_pb2.End(reason="test"))
        message = await self.receive()
        assert message is not None
        assert message.WhichOneof("body") == "end"
        assert await self.receive() is None
        assert await self.call.code() == grpc.StatusCode.OK

    async def status(self) -> tuple[grpc.StatusCode, str]:
        """The status of a stream that the service ended."""
        code = await asyncio.wait_for(self.call.code(), WAIT_SECONDS)
        return code, await self.call.details()


def message_of(item: DraftItem, round_: int, **changes: Any) -> draft_pb2.ProposeItem:
    message = draft_pb2.ProposeItem(
        request_id=item.request_id,
        epoch=5,
        round=round_,
        recent_tokens=item.recent_tokens,
        position=item.position,
        k=item.k,
        sampling_key=item.key,
        mode=MODES[item.mode],
        temperature=item.temperature,
    )
    if item.features is not None:
        message.features.CopyFrom(codec.encode(item.features))
    message.MergeFrom(draft_pb2.ProposeItem(**changes))
    return message


async def until(reached: Callable[[], bool]) -> None:
    """Lets the event loop work until a state is reached."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not reached():  # noqa: ASYNC110
            await asyncio.sleep(0)


@asynccontextmanager
async def serving(service: DraftService) -> AsyncIterator[tuple[RunningDraft, grpc.aio.Channel]]:
    running = await serve(service, "127.0.0.1:0")
    channel = rpc.open_channel(running.address)
    try:
        yield running, channel
    finally:
        await channel.close()
        await running.stop()


def items() -> list[DraftItem]:
    greedy = [golden.item for golden in first_rounds(NAME)]
    return [*greedy, *[replace(item, mode=DraftMode.COUPLED, temperature=0.75, k=5) for item in greedy]]


GOOD = items()[0]


def replay_item(position: int, padding_bytes: int = 0) -> draft_pb2.ProposeItem:
    item = DraftItem("r", (TEXT[position],), None, position, 4, DraftMode.GREEDY)
    message = message_of(item, position)
    if padding_bytes:
        message.features.CopyFrom(codec.encode(torch.zeros(padding_bytes, dtype=torch.int8).float(), "int8"))
    return message
