"""One request, several readers: all get everything, and nobody waits for a slow one."""

from __future__ import annotations

import asyncio
import random

import pytest

from coordinator.answer import Answer
from coordinator.broadcast import Broadcast
from coordinator.output import ClientStalled, Outlet
from protos import coordinator_pb2
from protos.errors import Unavailable


def started(num_choices: int) -> coordinator_pb2.GenerateResponse:
    keys = [bytes(16)] * num_choices
    return coordinator_pb2.GenerateResponse(started=coordinator_pb2.Started(choice_sampling_keys=keys))


def delta(index: int, first: int, count: int) -> coordinator_pb2.GenerateResponse:
    ids = [first + i for i in range(count)]
    text = "".join(chr(97 + i % 26) for i in ids)
    return coordinator_pb2.GenerateResponse(
        delta=coordinator_pb2.Delta(index=index, first_token_index=first, token_ids=ids, text=text)
    )


def finished(index: int) -> coordinator_pb2.GenerateResponse:
    return coordinator_pb2.GenerateResponse(finished=coordinator_pb2.Finished(index=index, finish_reason=1))


async def read(outlet: Outlet) -> Answer:
    answer = Answer()
    async for message in outlet.messages():
        answer.add(message)  # raises at a gap
    return answer


async def test_a_late_reader_gets_the_same_answer() -> None:
    rng = random.Random(2)
    broadcast = Broadcast(4)
    readers = [broadcast.attach()]
    broadcast.put(started(3))
    lengths = [0, 0, 0]
    for _ in range(400):
        index, count = rng.randrange(3), rng.randrange(1, 9)
        broadcast.put(delta(index, lengths[index], count))
        lengths[index] += count
        if rng.random() < 0.02:
            readers.append(broadcast.attach())
    for index in range(3):
        broadcast.put(finished(index))
    broadcast.close(None)
    readers.append(broadcast.attach())
    answers = [await read(reader) for reader in readers]
    assert len(answers) > 5
    for answer in answers:
        assert [len(choice.token_ids) for choice in answer.choices] == lengths
        assert [choice.text for choice in answer.choices] == [c.text for c in answers[0].choices]
        assert answer.is_finished


async def test_a_late_reader_gets_the_same_answer_in_order() -> None:
    broadcast = Broadcast(4)
    for message in (started(1), delta(0, 0, 3), delta(0, 3, 2)):
        broadcast.put(message)
    late = broadcast.attach()
    broadcast.put(delta(0, 5, 1))
    broadcast.close(None)
    messages = [message async for message in late.messages()]
    assert messages[0].HasField("started")
    assert [token for message in messages for token in message.delta.token_ids] == list(range(6))


async def test_what_was_handed_out_does_not_change() -> None:
    broadcast = Broadcast(4)
    broadcast.put(started(1))
    broadcast.put(delta(0, 0, 1))
    reader = broadcast.attach()
    broadcast.put(delta(0, 1, 1))
    broadcast.close(None)
    assert len((await read(reader)).token_ids) == 2


async def test_the_backlog_of_a_long_text_is_few_messages() -> None:
    broadcast = Broadcast(4)
    broadcast.put(started(1))
    for index in range(2000):
        broadcast.put(delta(0, index, 1))
    assert broadcast.attach().num_queued < 12


async def test_the_fastest_reader_sets_the_pace() -> None:
    broadcast = Broadcast(4)
    slow, fast = broadcast.attach(), broadcast.attach()
    messages = fast.messages()
    for index in range(20):
        broadcast.put(delta(0, index, 1))
        await anext(messages)
    assert slow.is_full
    assert not broadcast.is_full
    await broadcast.wait_for_room(0.01)
    broadcast.detach(fast)
    assert broadcast.is_full
    with pytest.raises(ClientStalled, match="20 messages unread"):
        await broadcast.wait_for_room(0.01)


async def test_reading_makes_room() -> None:
    broadcast = Broadcast(2)
    reader = broadcast.attach()
    broadcast.put(started(1))
    broadcast.put(delta(0, 0, 1))
    waiting = asyncio.create_task(broadcast.wait_for_room(5))
    await asyncio.sleep(0)
    assert not waiting.done()
    await anext(reader.messages())
    await waiting


async def test_an_error_follows_the_last_message_for_every_reader() -> None:
    broadcast = Broadcast(4)
    readers = [broadcast.attach()]
    broadcast.put(started(1))
    broadcast.close(Unavailable("gone"))
    readers.append(broadcast.attach())
    for reader in readers:
        messages = reader.messages()
        assert (await anext(messages)).HasField("started")
        with pytest.raises(Unavailable):
            await anext(messages)
