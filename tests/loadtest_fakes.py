"""A loop whose time jumps, and servers that answer at set times in it."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from coordinator.loadtest.runner import Send
from coordinator.loadtest.samples import Chunk, Place, Sample, Status
from protos import coordinator_pb2 as pb
from protos import rpc
from protos.common_pb2 import FINISH_REASON_LENGTH, Describe
from protos.errors import DliteError, Unavailable

T = TypeVar("T")


class JumpingSelector(selectors.SelectSelector):
    """Waits for nothing: when nothing is ready, time jumps to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout:
            self.now += timeout
        return ready


def run_in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    """Runs to the end on a loop whose clock begins at 0 and needs no time."""
    selector = JumpingSelector()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


def started(num_prompt_tokens: int = 10) -> pb.GenerateResponse:
    return pb.GenerateResponse(
        started=pb.Started(request_id="r", sampling_key=b"\0" * 16, num_prompt_tokens=num_prompt_tokens)
    )


def delta(first: int, tokens: Sequence[int], text: str = "x") -> pb.GenerateResponse:
    return pb.GenerateResponse(delta=pb.Delta(first_token_index=first, token_ids=tokens, text=text))


def finished(**fields: Any) -> pb.GenerateResponse:
    fields.setdefault("finish_reason", FINISH_REASON_LENGTH)
    return pb.GenerateResponse(finished=pb.Finished(**fields))


@dataclass(eq=False)
class TimedServer:
    """Answers request after request, each in `service_seconds`; does nothing while it is frozen.

    Args:
        frozen: from when until when, seconds of the loop's clock.
    """

    service_seconds: float
    frozen: tuple[float, float] = (0.0, 0.0)
    num_tokens: int = 1
    requests: list[pb.GenerateRequest] = field(default_factory=list)

    async def send(self, message: pb.GenerateRequest) -> AsyncGenerator[pb.GenerateResponse]:
        loop = asyncio.get_running_loop()
        self.requests.append(message)
        begin, end = self.frozen
        if begin <= loop.time() < end:
            await asyncio.sleep(end - loop.time())
        yield started()
        for index in range(self.num_tokens):
            await asyncio.sleep(self.service_seconds)
            yield delta(index, [index])
        yield finished()


@dataclass(eq=False)
class MixedServer:
    """In turn: good, empty, failing, good, cut, good."""

    kinds: tuple[str, ...] = ("good", "empty", "failing", "good", "cut", "good")
    num_sent: int = 0

    async def send(self, message: pb.GenerateRequest) -> AsyncGenerator[pb.GenerateResponse]:
        kind = self.kinds[self.num_sent % len(self.kinds)]
        self.num_sent += 1
        yield started()
        await asyncio.sleep(0.1)
        if kind == "failing":
            raise Unavailable("broken by the test")
        if kind == "cut":
            yield delta(0, [1, 2])
            return
        if kind == "good":
            yield delta(0, [1, 2])
            await asyncio.sleep(0.2)
            yield delta(2, [3, 4])
        yield finished()


@dataclass(eq=False)
class CachingServer:
    """Knows the prompts it has seen, as a prefix cache does."""

    seen: set[tuple[int, ...]] = field(default_factory=set)

    async def send(self, message: pb.GenerateRequest) -> AsyncGenerator[pb.GenerateResponse]:
        prompt = tuple(message.token_ids)
        cached = len(prompt) if prompt in self.seen else 0
        self.seen.add(prompt)
        yield started(len(prompt))
        yield delta(0, [1, 2])
        yield finished(usage=pb.Usage(cached_tokens=cached))


@asynccontextmanager
async def serve(send: Send) -> AsyncIterator[str]:
    """The fake as a coordinator behind real gRPC; gives its address."""

    async def generate(
        message: pb.GenerateRequest, context: rpc.Context
    ) -> AsyncIterator[pb.GenerateResponse]:
        async for response in send(message):
            yield response

    async def info(message: pb.GetServerInfoRequest, context: rpc.Context) -> pb.GetServerInfoResponse:
        return pb.GetServerInfoResponse(target=Describe(model="models/tiny", vocab_size=1000))

    methods = {
        "Generate": rpc.server_stream(pb.GenerateRequest, generate),
        "GetServerInfo": rpc.unary(pb.GetServerInfoRequest, info),
    }
    server = await rpc.start_server(rpc.Service("dlite.v1.Coordinator", methods), "127.0.0.1:0")
    try:
        yield server.address
    finally:
        await server.stop(0)


@dataclass(eq=False)
class RefusingServer:
    """Fails every request."""

    error: DliteError = field(default_factory=lambda: Unavailable("nobody there"))

    async def send(self, message: pb.GenerateRequest) -> AsyncGenerator[pb.GenerateResponse]:
        if message is not None:
            raise self.error
        yield started()


def sample(session: int = 0, turn: int = 0, **changes: Any) -> Sample:
    """A good request: scheduled at 0, four tokens in two chunks at 1 s and 2 s."""
    values: dict[str, Any] = {
        "place": Place(session, turn),
        "scheduled_seconds": 0.0,
        "started_seconds": 0.5,
        "ended_seconds": 2.0,
        "status": Status.OK,
        "chunks": (Chunk(1.0, 2), Chunk(2.0, 2)),
        "token_ids": (1, 2, 3, 4),
        "num_prompt_tokens": 10,
    }
    return Sample(**{**values, **changes})
