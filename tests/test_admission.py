"""Who is let in: one request for one id, a bounded queue, readers that come and go."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coordinator.admission import body_digest
from coordinator.answer import Answer
from coordinator.coordinator import Coordinator
from coordinator.generation import Generation
from coordinator.output import Outlet
from protos import coordinator_pb2
from protos.common_pb2 import FINISH_REASON_ABORT, FINISH_REASON_LENGTH
from protos.errors import AlreadyExists, Busy, InvalidRequest, Unavailable
from tests.coordinator_fakes import TableEngine, counting
from tests.coordinator_harness import ScriptedDrafter, TablePort, complete, make_coordinator, request, until

OFF = coordinator_pb2.SPECULATION_MODE_OFF
LONG_PROMPT = "x" * 9000  # tokenised off the event loop


class Held:
    """A coordinator whose target decides one token a request and then waits for `go`."""

    def __init__(self, **config: Any) -> None:
        self.engine = TableEngine(counting)
        self._step, self.engine.step = self.engine.step, lambda: []  # type: ignore[method-assign]
        self.port = TablePort(self.engine)
        self.coordinator: Coordinator = make_coordinator(self.port, **config)

    def go(self) -> None:
        self.engine.step = self._step  # type: ignore[method-assign]
        self.port._tick_soon()

    async def admit(self, request_id: str, **fields: Any) -> Generation:
        return await self.coordinator.admit(
            request(request_id=request_id, mode=OFF, **{"max_tokens": 30, **fields})
        )


async def answer_of(outlet: Outlet) -> Answer:
    answer = Answer()
    async for message in outlet.messages():
        answer.add(message)
    return answer


async def test_the_same_request_twice_is_one_and_both_get_all_of_it() -> None:
    held = Held()
    first = await held.admit("a")
    reader = first.attach()
    await until(lambda: held.engine.is_running)
    second = await held.admit("a")
    assert second is first
    late = second.attach()
    held.go()
    answers = await asyncio.gather(answer_of(reader), answer_of(late))
    assert [answer.token_ids for answer in answers] == [list(range(30))] * 2
    assert answers[0].finished == answers[1].finished
    assert len(held.engine.opened) == 1


async def test_the_same_id_with_another_body_is_refused() -> None:
    held = Held()
    (await held.admit("a")).attach()
    for fields in ({"max_tokens": 31}, {"stop": ["x"]}, {"session_id": "s"}):
        with pytest.raises(AlreadyExists, match="'a' is running with another body"):
            await held.admit("a", **fields)
    (await held.admit("b", max_tokens=31)).attach()
    held.go()
    await until(lambda: held.coordinator.num_running == 0)
    again = await held.admit("a", max_tokens=31)
    assert len((await answer_of(again.attach())).token_ids) == 31


def test_another_body_is_another_request() -> None:
    assert body_digest(request(max_tokens=3)) == body_digest(request(max_tokens=3))
    assert body_digest(request(max_tokens=3)) != body_digest(request(max_tokens=4))


async def test_the_last_reader_that_goes_aborts_the_request() -> None:
    held = Held()
    generation = await held.admit("a")
    generation.detach(generation.attach())
    for _ in range(20):
        await asyncio.sleep(0)
    assert held.coordinator.num_running == 0


async def test_equal_maps_in_another_order_are_the_same_body() -> None:
    one, other = request(), request()
    for token in (1, 2, 3, 400):
        one.logit_bias[token] = token / 7
    for token in (400, 3, 2, 1):
        other.logit_bias[token] = token / 7
    assert body_digest(one) == body_digest(other)


async def test_the_request_lives_as_long_as_somebody_reads() -> None:
    held = Held()
    generation = await held.admit("a")
    first, second = generation.attach(), generation.attach()
    generation.detach(first)
    await asyncio.sleep(0)
    assert held.coordinator.num_running == 1
    generation.detach(second)
    await generation.wait_ended()
    assert held.coordinator.num_running == 0
    assert not held.engine.sequences


async def test_two_callers_of_one_admission_and_one_goes() -> None:
    held = Held()
    callers = [asyncio.create_task(held.admit("a", prompt=LONG_PROMPT)) for _ in "12"]
    await asyncio.sleep(0)
    callers[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await callers[0]
    with pytest.raises(InvalidRequest, match="never fit"):
        await callers[1]
    assert (await held.admit("a")).request.request_id == "a"


async def test_an_admission_nobody_waits_for_leaves_nothing() -> None:
    held = Held(max_running=1, max_waiting=0)
    caller = asyncio.create_task(held.admit("a", prompt=LONG_PROMPT))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await until(lambda: not held.coordinator._admissions._entries)
    (await held.admit("a")).attach()
    assert held.coordinator.num_running == 1


async def test_an_invalid_request_gives_its_place_back() -> None:
    held = Held(max_running=1, max_waiting=0)
    for _ in range(3):
        with pytest.raises(InvalidRequest):
            await held.admit("a", top_p=5.0)
    assert held.coordinator.info().num_running == 0
    await held.admit("a")
    assert held.coordinator.info().num_running == 1


async def test_beyond_the_places_requests_wait_in_order_and_beyond_the_queue_they_are_refused() -> None:
    held = Held(max_running=2, max_waiting=2)
    generations = [await held.admit(name) for name in "abcd"]
    readers = [generation.attach() for generation in generations]
    await until(lambda: len(held.engine.sequences) == 2)
    info = held.coordinator.info()
    assert (info.num_running, info.num_waiting) == (2, 2)
    with pytest.raises(Busy, match="2 requests wait, at most 2") as caught:
        await held.admit("e")
    assert caught.value.retry_after_seconds == 1.0
    held.go()
    answers = await asyncio.gather(*(answer_of(reader) for reader in readers))
    assert all(answer.token_ids == list(range(30)) for answer in answers)
    opened = [name for name, kind in held.engine.log if kind == "open"]
    assert opened == ["a", "b", "c", "d"]
    assert answers[2].usage.queue_ms > 0
    info = held.coordinator.info()
    assert (info.num_running, info.num_waiting) == (0, 0)


async def test_a_queued_request_can_be_aborted_and_frees_its_place() -> None:
    held = Held(max_running=1, max_waiting=1)
    (await held.admit("a")).attach()
    reader = (await held.admit("b", n=1)).attach()
    assert held.coordinator.abort("b")
    answer = await answer_of(reader)
    assert answer.finish_reason == FINISH_REASON_ABORT
    assert answer.usage.prompt_tokens == 3
    assert answer.usage.completion_tokens == 0
    assert [name for name, kind in held.engine.log] == ["a", "a"]
    (await held.admit("c")).attach()


async def test_choices_take_a_place_each() -> None:
    held = Held(max_running=3, max_waiting=1)
    (await held.admit("a", n=2)).attach()
    (await held.admit("b", n=2)).attach()
    info = held.coordinator.info()
    assert (info.num_running, info.num_waiting) == (2, 1)
    with pytest.raises(InvalidRequest, match="at most 3"):
        await held.admit("c", n=4)


async def test_drain_serves_the_queue_too_and_tells_the_rest_to_go_elsewhere() -> None:
    held = Held(max_running=1)
    readers = [(await held.admit(name)).attach() for name in "ab"]
    await until(lambda: held.engine.is_running)
    draining = asyncio.create_task(held.coordinator.drain(20))
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="ask another one"):
        await held.admit("c")
    held.go()
    answers = await asyncio.gather(*(answer_of(reader) for reader in readers))
    assert [answer.finish_reason for answer in answers] == [FINISH_REASON_LENGTH] * 2
    await draining


async def test_what_is_left_at_the_end_of_a_drain_is_unavailable_with_its_usage() -> None:
    held = Held(max_running=1)
    reader = (await held.admit("a")).attach()
    await until(lambda: held.engine.is_running)
    await held.coordinator.drain(0)
    messages = reader.messages()
    answer = Answer()
    for _ in range(3):  # Started, a delta, Finished
        answer.add(await anext(messages))
    with pytest.raises(Unavailable, match="resume at another one"):
        await anext(messages)
    assert answer.finish_reason == FINISH_REASON_ABORT
    assert "shutting down" in answer.finished.error
    assert answer.usage.completion_tokens == 1


async def test_a_text_that_is_whole_ends_without_the_target() -> None:
    engine = TableEngine(counting)
    coordinator = make_coordinator(TablePort(engine), ScriptedDrafter(engine, 3))
    whole, _, _ = await complete(coordinator, request(max_tokens=9))
    resume = coordinator_pb2.Resume(token_ids=whole.token_ids, sampling_key=whole.sampling_key)
    rest, _, failure = await complete(coordinator, request(max_tokens=9, resume=resume))
    assert failure is None
    assert rest.finish_reason == FINISH_REASON_LENGTH
    assert rest.token_ids == []
    assert rest.usage.completion_tokens == 9
    assert len(engine.opened) == 1
