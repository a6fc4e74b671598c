"""The client: resumes in mid-text, knows several addresses, waits on a thread of its own."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from coordinator import async_client, blocking_client
from coordinator.client import Answer, AsyncClient, Client, ClientOptions, make_request
from coordinator.coordinator import Coordinator
from coordinator.patience import Patience
from coordinator.resuming import Progress
from coordinator.server import CoordinatorServicer
from protos import coordinator_pb2, rpc
from protos.common_pb2 import FINISH_REASON_ABORT, FINISH_REASON_LENGTH, FINISH_REASON_STOP
from protos.errors import Busy, DliteError, InvalidRequest, NotFound, TimedOut, Unavailable
from tests.coordinator_fakes import TableEngine, counting, saying
from tests.coordinator_harness import ScriptedDrafter, TablePort, make_coordinator, request, until

TEXT = "日本 says hello 👍🏽, and says hello again and again, and ends"
OFF = coordinator_pb2.SPECULATION_MODE_OFF
QUICK = ClientOptions(patience_seconds=20, first_pause_seconds=0.001, longest_pause_seconds=0.002)


class Front:
    """A coordinator's `Generate` over gRPC whose streams break after as many messages as `budget` says."""

    def __init__(self, coordinator: Coordinator, budget: Callable[[], int | None] = lambda: None) -> None:
        self.coordinator = coordinator
        self._servicer = CoordinatorServicer(coordinator, 30.0)
        self.requests: list[coordinator_pb2.GenerateRequest] = []
        self.budget = budget
        self.error: DliteError = Unavailable("broken by the test")

    def service(self) -> rpc.Service:
        service = self._servicer.service()
        broken = rpc.server_stream(coordinator_pb2.GenerateRequest, self._generate)
        return rpc.Service(service.name, {**service.methods, "Generate": broken})

    async def _generate(
        self, message: coordinator_pb2.GenerateRequest, context: rpc.Context
    ) -> AsyncIterator[coordinator_pb2.GenerateResponse]:
        self.requests.append(message)
        left = self.budget()
        if left == 0:
            raise self.error
        async with aclosing(self._servicer.generate(message, context)) as responses:
            async for response in responses:
                yield response
                if left is not None:
                    left -= 1
                    if not left:
                        raise self.error


def front(text: str = TEXT, num_right: int = 2, **config: Any) -> Front:
    engine = TableEngine(saying(text) if text else counting)
    return Front(make_coordinator(TablePort(engine), ScriptedDrafter(engine, num_right), **config))


@asynccontextmanager
async def serve(*fronts: Front) -> AsyncIterator[list[str]]:
    servers = [await rpc.start_server(each.service(), "127.0.0.1:0") for each in fronts]
    try:
        yield [server.address for server in servers]
    finally:
        for server in servers:
            await server.stop(0)


async def read(stream: Any) -> tuple[Answer, DliteError | None]:
    """What came, and the error that ended it."""
    answer = Answer()
    try:
        async for message in stream:
            answer.add(message)
    except DliteError as error:
        return answer, error
    return answer, None


async def test_three_lines() -> None:
    async with serve(front()) as (address,), AsyncClient(address) as client:
        answer = await client.ask("hi", temperature=0)
    assert answer.text == TEXT
    assert answer.usage.completion_tokens == len(TEXT.encode()) + 1


@pytest.mark.parametrize(
    "fields", [{}, {"n": 3}, {"stop": ["gain and"]}, {"max_tokens": 17}, {"n": 2, "seed": 3}]
)
async def test_broken_again_and_again_there_is_no_gap_and_no_repeat(fields: dict[str, Any]) -> None:
    rng = random.Random(4)
    fronts = [front(num_right=1), front(num_right=3)]
    async with serve(*fronts) as addresses, AsyncClient(*addresses, options=QUICK) as client:
        whole = await client.complete(request(**fields))
        for number in range(12):
            for each in fronts:
                each.budget = lambda: rng.choice((1, 2, 3, 5, 9, 14))
            answer = await client.complete(request(request_id=f"r{number}", **fields))
            assert [choice.text for choice in answer.choices] == [choice.text for choice in whole.choices]
            assert [c.token_ids for c in answer.choices] == [c.token_ids for c in whole.choices]
            assert [c.finish_reason for c in answer.choices] == [c.finish_reason for c in whole.choices]
            assert answer.choices[0].first_token_index == 0
        for each in fronts:
            assert each.coordinator.num_running == 0
            assert any(message.HasField("resume") for message in each.requests)


async def test_one_started_and_one_end_for_each_choice() -> None:
    broken = front()
    async with serve(broken) as addresses, AsyncClient(*addresses, options=QUICK) as client:
        broken.budget = lambda: 6
        messages = [message async for message in client.generate(request(n=2, request_id="r"))]
    bodies = [message.WhichOneof("body") for message in messages]
    assert bodies.count("started") == 1
    assert [m.finished.index for m in messages if m.HasField("finished")] == [0, 1]
    assert {message.request_id for message in broken.requests[1:]} == {
        f"r.{number}" for number in range(2, len(broken.requests) + 1)
    }


def progress_of(*messages: coordinator_pb2.GenerateResponse) -> tuple[Progress, list[Any]]:
    """What a client knows after these messages, and what it passed on."""
    progress = Progress(request(request_id="r", seed=3))
    part = progress.next_part()
    assert part is not None
    passed = [out for message in messages for out in progress.take(message, part)]
    return progress, passed


def response(**body: Any) -> coordinator_pb2.GenerateResponse:
    return coordinator_pb2.GenerateResponse(**body)


KEY = b"k" * 16
STARTED = response(started={"request_id": "r", "sampling_key": KEY, "choice_sampling_keys": [KEY]})
DELTA = response(delta={"token_ids": [4, 5], "text": "ab"})


def test_a_resumed_request_brings_its_tokens() -> None:
    progress, _ = progress_of(STARTED, DELTA)
    part = progress.next_part()
    assert part is not None
    assert list(part.request.resume.token_ids) == [4, 5]
    assert part.request.resume.sampling_key == KEY
    assert not part.request.HasField("seed")
    assert part.request.request_id == "r.2"


def test_a_broken_end_is_held_back() -> None:
    broken = response(finished={"finish_reason": FINISH_REASON_ABORT})
    progress, passed = progress_of(STARTED, DELTA, broken)
    assert passed == [STARTED, DELTA]
    assert list(progress.release_held()) == [broken]
    assert progress.next_part() is None


async def test_a_dead_address_is_passed_over_and_a_dead_end_is_told_at_once() -> None:
    async with serve(front()) as (address,):
        async with AsyncClient("127.0.0.1:1", address) as client:
            assert (await client.ask("hi", temperature=0)).text == TEXT
        async with AsyncClient("127.0.0.1:1", "127.0.0.1:2") as client:
            with pytest.raises(Unavailable):
                await client.ask("hi")
            with pytest.raises(Unavailable):
                await client.server_info()


async def test_patience_ends_and_then_the_error_is_the_callers() -> None:
    broken = front()
    options = ClientOptions(patience_seconds=0)
    async with serve(broken) as (address,), AsyncClient(address, options=options) as client:
        broken.budget = lambda: 3
        answer, error = await read(client.generate(request()))
        assert isinstance(error, Unavailable)
        assert "broken by the test" in str(error)
        assert len(answer.token_ids) > 0


def test_patience_starts_anew_with_every_sign_of_life() -> None:
    patience = Patience(ClientOptions(10.0, 1.0, 4.0), num_addresses=1)
    assert patience.pause_seconds(5, 100.0) == 1.0
    assert [patience.pause_seconds(5, 100.0 + t) for t in (1, 3, 7)] == [2.0, 4.0, 4.0]
    assert patience.pause_seconds(6, 109.0) == 1.0
    assert patience.pause_seconds(6, 118.0) == 2.0
    assert patience.pause_seconds(6, 119.0) is None


@pytest.mark.parametrize("error", [Busy("full", retry_after_seconds=2.5), NotFound("no"), DliteError("bug")])
async def test_other_errors_are_told_not_retried(error: DliteError) -> None:
    broken = front()
    broken.budget, broken.error = (lambda: 3), error
    async with serve(broken) as (address,), AsyncClient(address) as client:
        with pytest.raises(type(error)) as caught:
            await client.complete(request())
    assert caught.value.retry_after_seconds == error.retry_after_seconds
    assert len(broken.requests) == 1


async def test_an_invalid_request_names_the_field() -> None:
    async with serve(front()) as (address,), AsyncClient(address) as client:
        with pytest.raises(InvalidRequest, match="top_p") as caught:
            await client.ask("hi", top_p=7.0)
        assert caught.value.field == "top_p"
    with pytest.raises(InvalidRequest, match="no_such_field"):
        make_request("hi", no_such_field=1)
    with pytest.raises(InvalidRequest, match="address"):
        AsyncClient()


async def test_a_timeout_ends_the_request_with_its_usage() -> None:
    held = front()
    port: Any = held.coordinator._backends.targets.busiest().port
    port.engine.step = lambda: []
    async with serve(held) as (address,), AsyncClient(address) as client:
        answer, error = await read(client.generate(request(mode=OFF), timeout_seconds=2.0))
        await until(lambda: not port.engine.sequences)
    assert isinstance(error, TimedOut)
    assert answer.finish_reason == FINISH_REASON_ABORT
    assert "deadline" in answer.finished.error
    assert answer.usage.completion_tokens == 1
    assert held.coordinator.num_running == 0


async def test_a_deadline_of_one_reader_does_not_end_the_request_of_another() -> None:
    held = front(text="")
    port: Any = held.coordinator._backends.targets.busiest().port
    step, port.engine.step = port.engine.step, lambda: []
    message = request(mode=OFF, request_id="r", max_tokens=20)
    async with serve(held) as (address,), AsyncClient(address) as client:
        patient = asyncio.create_task(client.complete(message))
        with pytest.raises(TimedOut):
            await client.complete(message, timeout_seconds=0.5)
        port.engine.step = step
        port._tick_soon()
        assert len((await patient).token_ids) == 20


async def test_abort_finds_a_request_that_was_resumed() -> None:
    held = front(text="")
    port: Any = held.coordinator._backends.targets.busiest().port
    budgets = iter((2, None))
    async with serve(held) as (address,), AsyncClient(address, options=QUICK) as client:
        held.budget = lambda: next(budgets)
        port.engine.step = lambda: []
        stream = client.generate(request(mode=OFF, request_id="r", max_tokens=90))
        assert (await anext(stream)).HasField("started")
        assert (await anext(stream)).HasField("delta")
        rest = asyncio.create_task(anext(stream))
        await until(lambda: len(held.requests) == 2)
        while not await client.abort("r"):
            pass
        last = await rest
        while not last.HasField("finished"):
            last = await anext(stream)
        assert last.finished.finish_reason == FINISH_REASON_ABORT
        assert [message.request_id for message in held.requests] == ["r", "r.2"]
        await stream.aclose()


async def test_a_stream_that_is_left_aborts() -> None:
    held = front(text="")
    async with serve(held) as (address,), AsyncClient(address) as client:
        async with client.stream("hi", temperature=0, max_tokens=150) as stream:
            first = await anext(stream)
        assert stream.answer.text.startswith(first)
        await until(lambda: not held.coordinator.num_running)


def use_blocking_client(address: str) -> Answer:
    with Client(address) as client:
        assert client.ask("hi", temperature=0).text == TEXT
        with client.stream("hi", temperature=0) as stream:
            pieces = list(stream)
        assert "".join(pieces) == stream.answer.text == TEXT
        assert stream.answer.finish_reason == FINISH_REASON_STOP
        with client.stream("hi", temperature=0) as stream:
            next(stream)
        with pytest.raises(InvalidRequest):
            client.ask("hi", top_p=7.0)
        assert not client.abort("nobody")
        return client.complete(make_request("hi", temperature=0, max_tokens=4))


async def test_the_blocking_client_needs_no_loop_of_its_caller() -> None:
    served = front()
    async with serve(served) as (address,):
        answers = await asyncio.gather(*(asyncio.to_thread(use_blocking_client, address) for _ in range(4)))
        await until(lambda: not served.coordinator.num_running)
    assert [answer.finish_reason for answer in answers] == [FINISH_REASON_LENGTH] * 4


async def test_the_blocking_client_goes_on_as_the_other_one_does() -> None:
    rng = random.Random(9)
    fronts = [front(num_right=1), front(num_right=3)]
    for each in fronts:
        each.budget = lambda: rng.choice((1, 2, 3, 5, 9, 14))

    def work(addresses: list[str]) -> list[Answer]:
        with Client(*addresses, options=QUICK) as client:
            return [client.complete(request(n=1 + number % 2)) for number in range(8)]

    async with serve(*fronts) as addresses:
        answers = await asyncio.to_thread(work, addresses)
        await until(lambda: not any(each.coordinator.num_running for each in fronts))
    assert all(choice.text == TEXT for answer in answers for choice in answer.choices)


async def test_the_blocking_client_tells_a_dead_end_and_a_deadline() -> None:
    held = front()
    port: Any = held.coordinator._backends.targets.busiest().port
    port.engine.step = lambda: []

    def work(address: str) -> None:
        with Client("127.0.0.1:1") as client, pytest.raises(Unavailable):
            client.ask("hi")
        with Client("127.0.0.1:1", address) as client:
            assert client.list_models().models[0].id == "models/table"
            with pytest.raises(TimedOut):
                client.complete(request(mode=OFF), timeout_seconds=0.4)

    async with serve(held) as (address,):
        await asyncio.to_thread(work, address)
        await until(lambda: not held.coordinator.num_running)


TWO_LOOPS = """
import asyncio, os, threading
from coordinator.client import AsyncClient
from tests.coordinator_harness import shared_tokenizer
from tests.test_client import TEXT, front, serve

texts = []
shared_tokenizer()

async def one():
    async with serve(front()) as (address,), AsyncClient(address) as client:
        answers = await asyncio.gather(*(client.ask("hi", temperature=0) for _ in range(16)))
        texts.extend(answer.text for answer in answers)

def run(loop):
    asyncio.set_event_loop(loop)
    loop.run_forever()

# Loops that live as long as the process, as an actor's does.
loops = [asyncio.new_event_loop() for _ in range(3)]
for loop in loops:
    threading.Thread(target=run, args=(loop,), daemon=True).start()
for future in [asyncio.run_coroutine_threadsafe(one(), loop) for loop in loops]:
    future.result(60)
print(len(texts), set(texts) == {TEXT}, flush=True)
os._exit(0)
"""


async def test_channels_belong_to_the_loop_that_opens_them() -> None:
    """F7: servers and clients in event loops of several threads, as actors do."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", TWO_LOOPS, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert out.decode() == "48 True\n", err.decode()
    assert b"different loop" not in err
    assert b"RuntimeError" not in err


async def test_a_server_that_never_answers_ends_a_unary_call_at_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F3: every unary call has one."""

    async def never(message: coordinator_pb2.AbortRequest, context: rpc.Context) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(async_client, "CALL_SECONDS", 0.2)
    monkeypatch.setattr(blocking_client, "CALL_SECONDS", 0.2)
    methods = {"Abort": rpc.unary(coordinator_pb2.AbortRequest, never)}
    server = await rpc.start_server(rpc.Service("dlite.v1.Coordinator", methods), "127.0.0.1:0")
    async with AsyncClient(server.address) as client:
        with pytest.raises(TimedOut):
            await client.abort("r")

    def work() -> None:
        with Client(server.address) as client, pytest.raises(TimedOut):
            client.abort("r")

    await asyncio.to_thread(work)
    await server.stop(0)
