"""The two long streams over real gRPC: connect, lose, come back, match, coalesce, refuse."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from coordinator.commands import close_command, run_command
from coordinator.draft_link import DraftLink
from coordinator.links import ItemOutbox
from coordinator.ports import Inbox, StreamLost
from coordinator.session import Session
from coordinator.target_link import TargetLink
from coordinator.tokenizer_fetch import fetch_tokenizer
from protos import common_pb2, draft_pb2, target_pb2
from protos.errors import ContractMismatch, Unavailable
from tests.coordinator_fakes import TableEngine
from tests.coordinator_harness import (
    DraftServer,
    asked,
    describe_drafter,
    describe_target,
    serve_drafter,
    serve_target,
    until,
)


def open_command(epoch: int = 5, request_id: str = "r") -> target_pb2.Command:
    command = target_pb2.Command(request_id=request_id, epoch=epoch)
    command.open.token_ids.extend([1, 2, 3])
    command.open.num_prompt_tokens = 3
    command.open.params.max_tokens = 20
    return command


@asynccontextmanager
async def linked(address: str, **options: Any) -> AsyncIterator[tuple[TargetLink, list[bool]]]:
    changes: list[bool] = []
    link = TargetLink(address, "c", options.pop("resend_seconds", 0.05), changes.append)
    link.start()
    assert await link.wait_connected(5)
    try:
        yield link, changes
    finally:
        await link.stop()


async def event_of(inbox: Inbox) -> target_pb2.Event:
    event = await inbox.get(5)
    assert isinstance(event, target_pb2.Event), event
    return event


async def test_a_round_over_the_wire_and_a_clean_end() -> None:
    async with serve_target(TableEngine()) as (address, server):
        async with linked(address) as (link, changes):
            assert link.describe == describe_target()
            inbox = Inbox()
            link.attach("r", inbox)
            link.send([open_command()])
            verdict = (await event_of(inbox)).verdict
            assert list(verdict.tokens) == [0]
            assert link.rtt_seconds is not None
            assert 0 <= link.rtt_seconds < 5
        assert server.ended == ["shutting down"], "the stream ends with an end frame"
        assert changes == [True, False]


async def test_commands_queued_together_travel_together_in_order() -> None:
    outbox = ItemOutbox[target_pb2.Command](
        lambda items: target_pb2.TargetCommand(commands=target_pb2.CommandList(commands=items)), 100
    )
    outbox.put(target_pb2.TargetCommand(hello=common_pb2.Hello(coordinator_id="c")))
    for number, size in enumerate([40, 40, 40, 500, 10]):
        outbox.put_item(close_command(str(number), 1, 0), size)
    outbox.finish(target_pb2.TargetCommand(end=common_pb2.End(reason="bye")))
    outbox.put_item(close_command("late", 1, 0), 1)
    messages = []
    while (message := await outbox.get()) is not None:
        assert isinstance(message, target_pb2.TargetCommand)
        messages.append(message)
    assert [message.WhichOneof("body") for message in messages] == ["hello", *["commands"] * 4, "end"]
    sent = [[item.request_id for item in message.commands.commands] for message in messages[1:-1]]
    assert sent == [["0", "1"], ["2"], ["3"], ["4"]]


async def test_a_lost_stream_tells_every_request_and_comes_back_with_a_higher_generation() -> None:
    async with serve_target(TableEngine()) as (address, server), linked(address) as (link, changes):
        inbox, other = Inbox(), Inbox()
        link.attach("r", inbox)
        link.attach("s", other)
        await server.cut()
        for box in (inbox, other):
            assert isinstance(await box.get(5), StreamLost)
        assert await link.wait_connected(5)
        assert server.num_streams == 2
        link.send([open_command()])
        assert (await event_of(inbox)).HasField("verdict")
        assert changes == [True, False, True]


async def test_a_restarted_target_is_found_again() -> None:
    engine = TableEngine()
    async with serve_target(engine) as (address, _):
        link = TargetLink(address, "c", 0.05, lambda connected: None)
        link.start()
        assert await link.wait_connected(5)
        inbox = Inbox()
        link.attach("r", inbox)
    assert isinstance(await inbox.get(5), StreamLost)
    assert not link.is_connected
    link.send([open_command()])
    async with serve_target(engine, address):
        assert await link.wait_connected(10)
        await link.stop()
    assert not engine.log, "what was sent without a connection is not sent later"


async def test_another_model_at_the_same_address_is_refused() -> None:
    async with serve_target(TableEngine()) as (address, _):
        link = TargetLink(address, "c", 0.05, lambda connected: None)
        link.start()
        assert await link.wait_connected(5)
    await until(lambda: not link.is_connected)
    async with serve_target(TableEngine(), address, fingerprint="0" * 64) as (_, server):
        await until(lambda: server.num_streams > 0)
        assert not await link.wait_connected(0.1)
        await link.stop()


async def test_a_lost_close_is_sent_again_until_closed() -> None:
    engine = TableEngine()
    num_lost = 0

    def lose_two(event: target_pb2.Event) -> list[target_pb2.Event]:
        nonlocal num_lost
        if event.HasField("closed") and num_lost < 2:
            num_lost += 1
            return []
        return [event]

    async with serve_target(engine) as (address, server), linked(address, resend_seconds=0.02) as (link, _):
        server.on_event = lose_two
        inbox = Inbox()
        link.attach("r", inbox)
        link.send([open_command()])
        await event_of(inbox)
        link.close("r", 5, 4)
        await until(lambda: len(engine.closes) >= 3)
        assert engine.closes == [("r", 5, 4)] * 3
        assert await inbox.get(0.1) is None, "a closed request hears nothing"
        assert len(engine.closes) == 3


async def test_a_suspect_stream_is_cut_and_replaced() -> None:
    async with serve_target(TableEngine()) as (address, server), linked(address) as (link, _):
        inbox = Inbox()
        link.attach("r", inbox)
        link.suspect()
        assert isinstance(await inbox.get(5), StreamLost)
        assert await link.wait_connected(5)
        assert server.num_streams == 2


async def test_a_run_streams_while_commands_go_out() -> None:
    engine = TableEngine()
    async with serve_target(engine) as (address, _), linked(address) as (link, _):
        session = Session([1, 2, 3], 3, 400)
        session.reopen(5)
        inbox = Inbox()
        link.attach("r", inbox)
        command = open_command()
        command.open.params.max_tokens = 400
        link.send([command])
        session.commit((await event_of(inbox)).verdict)
        session.round = 1
        link.send([run_command("r", session, 399, False)])
        lengths = [(await event_of(inbox)).verdict.committed_length for _ in range(399)]
        assert lengths == list(range(5, 404))


async def test_the_tokenizer_comes_by_rpc_and_its_hash_is_checked() -> None:
    async with serve_target(TableEngine()) as (address, server):
        tokenizer = await fetch_tokenizer(address, server.describe.tokenizer_hash)
        assert tokenizer.decode(tokenizer.encode("日本 x")) == "日本 x"
        with pytest.raises(ContractMismatch, match="tokenizer_hash"):
            await fetch_tokenizer(address, "0" * 64)
        server.files = {}
        assert not (await fetch_tokenizer(address, "")).has_text
        server.files = {"tokenizer.json": b"{}", "../x": b""}
        with pytest.raises(ContractMismatch):
            await fetch_tokenizer(address, "0" * 64)


def item(number: int = 1, **fields: Any) -> draft_pb2.ProposeItem:
    return draft_pb2.ProposeItem(request_id="r", epoch=5, round=number, k=2, **fields)


def reply(question: draft_pb2.ProposeItem) -> draft_pb2.Proposal:
    return draft_pb2.Proposal(
        request_id=question.request_id, epoch=question.epoch, round=question.round, tokens=[question.round, 9]
    )


@asynccontextmanager
async def drafting(server: DraftServer) -> AsyncIterator[DraftLink]:
    async with serve_drafter(server) as address:
        link = DraftLink(address, "c", describe_target())
        link.start()
        assert await link.wait_settled(5)
        try:
            yield link
        finally:
            await link.stop()


async def test_answers_find_their_question_in_any_order() -> None:
    held: list[draft_pb2.ProposeItem] = []

    def hold(question: draft_pb2.ProposeItem) -> None:
        held.append(question)
        if len(held) == 3:
            server.send([reply(question) for question in reversed(held)])

    server = DraftServer(hold)
    async with drafting(server) as link:
        answers = await asyncio.gather(*(asked(link, item(number)) for number in (1, 2, 3)))
        assert [answer.tokens[0] for answer in answers] == [1, 2, 3]
        assert server.num_batches == 1, "questions asked together travel together"


async def test_a_late_answer_is_dropped() -> None:
    held: list[draft_pb2.ProposeItem] = []
    server = DraftServer(held.append)
    async with drafting(server) as link:
        first = asked(link, item(1))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await first
        second = asked(link, item(2))
        await until(lambda: len(held) >= 2)
        server.send([reply(held[0]), reply(held[1])])
        assert (await second).tokens[0] == 2
        assert first.cancelled()


async def test_a_question_given_up_does_not_take_the_same_one_along() -> None:
    held: list[draft_pb2.ProposeItem] = []
    server = DraftServer(held.append)
    async with drafting(server) as link:
        first = asked(link, item(1))
        again = asked(link, item(1))
        first.cancel()
        await until(lambda: len(held) >= 2)
        server.send([reply(held[1])])
        async with asyncio.timeout(10):
            assert (await again).tokens[0] == 1


async def test_a_lost_drafter_fails_its_questions_at_once_and_comes_back() -> None:
    server = DraftServer(lambda question: None)
    async with serve_drafter(server) as address:
        link = DraftLink(address, "c", describe_target())
        link.start()
        assert await link.wait_settled(5)
        assert link.is_available
        waiting = asked(link, item(1))
        server.outbox.close()
        with pytest.raises(Unavailable):
            await waiting
    await until(lambda: not link.is_available)
    with pytest.raises(Unavailable):
        await asked(link, item(2))
    async with serve_drafter(DraftServer(reply), address):
        await until(lambda: link.is_available)
        assert (await asked(link, item(3))).tokens[0] == 3
        await link.stop()


async def test_a_drafter_that_does_not_fit_is_refused() -> None:
    server = DraftServer(reply)
    server.describe = describe_drafter(vocab_size=99)
    async with drafting(server) as link:
        assert not link.is_available
        assert "vocab_size" in link.refusal
        assert link.describe is None


async def test_a_failing_drafter_is_left_alone_for_a_while() -> None:
    async with drafting(DraftServer(reply)) as link:
        link.note_failure()
        assert not link.is_available
        assert (await asked(link, item(1))).tokens[0] == 1
        assert link.is_available
