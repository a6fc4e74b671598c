"""Sends malformed and hostile messages of every type to all three services, and judges the statuses.

Every method that takes one message is called with them, and on the long streams each is one message of an
otherwise good conversation.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

from deploy.bench.hostile import Hostile
from protos import common_pb2, coordinator_pb2, draft_pb2, rpc, target_pb2

SECONDS = 60.0
CLEAN = {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED}
# What a well-formed Hello may be told: another protocol, or a stream that is not the newest.
OF_HELLO = {grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.ABORTED}
# What the client's library puts in the place of a status when a write of its own fails first.
OF_THE_CLIENT, MOST_TRIES, PAUSE_SECONDS = "Internal error from Core", 8, 0.1
KEY = bytes(range(16))
TOKENS = [5, 6, 7]
GENERATE = coordinator_pb2.GenerateRequest(token_ids=TOKENS, max_tokens=3, temperature=0.0)
SAID = coordinator_pb2.GenerateRequest(
    messages=[coordinator_pb2.ChatMessage(role="user", content="hello")],
    max_tokens=4,
    stop=["x"],
    seed=3,
    temperature=0.7,
    logit_bias={1: 1.0},
    speculation=coordinator_pb2.Speculation(num_draft_tokens=3),
)
COORDINATOR: dict[str, list[Message]] = {
    "Generate": [GENERATE, SAID],
    "Abort": [coordinator_pb2.AbortRequest(request_id="r")],
    "SetSpeculation": [coordinator_pb2.SetSpeculationRequest(request_id="r", speculation=SAID.speculation)],
    "ListModels": [coordinator_pb2.ListModelsRequest()],
    "GetServerInfo": [coordinator_pb2.GetServerInfoRequest()],
    "Tokenize": [coordinator_pb2.TokenizeRequest(messages=SAID.messages)],
    "GetStats": [coordinator_pb2.GetStatsRequest()],
    "WatchRounds": [coordinator_pb2.WatchRoundsRequest()],
    "ExplainTuner": [coordinator_pb2.ExplainTunerRequest()],
    "ListReplicas": [coordinator_pb2.ListReplicasRequest()],
}
PROTOCOL = common_pb2.Protocol(major=rpc.PROTOCOL_MAJOR)


def hello(name: str) -> common_pb2.Hello:
    return common_pb2.Hello(coordinator_id=name, stream_generation=1, protocol=PROTOCOL)


def commands() -> list[Message]:
    """One message for each kind of command, for a request that is open."""
    opened = target_pb2.Open(
        token_ids=TOKENS,
        num_prompt_tokens=3,
        sampling_key=KEY,
        params=common_pb2.SamplingParams(max_tokens=9, top_p=0.5, logit_bias={1: 1.0}),
        want_features=True,
    )
    kinds: list[dict[str, Any]] = [
        {"open": opened},
        {"verify": target_pb2.Verify(committed_length=4, proposals=[8, 9])},
        {"run": target_pb2.Run(max_tokens=2, committed_length=4)},
        {"hold": target_pb2.Hold()},
        {"fetch": target_pb2.Fetch(committed_length=4)},
        {"close": target_pb2.Close(keep_length=4)},
    ]
    return [
        target_pb2.TargetCommand(
            commands=target_pb2.CommandList(
                commands=[target_pb2.Command(request_id="q", epoch=1, round=int("open" not in kind), **kind)]
            )
        )
        for kind in kinds
    ]


def items() -> list[Message]:
    features = common_pb2.Tensor(dtype="f32", shape=[4, 64], data=bytes(4 * 4 * 64))
    item = draft_pb2.ProposeItem(
        request_id="q", epoch=1, round=1, recent_tokens=TOKENS, features=features, position=3, k=2
    )
    item.mode, item.sampling_key = common_pb2.MODE_GREEDY, KEY
    return [draft_pb2.ProposeBatch(items=draft_pb2.ProposeList(items=[item]))]


def may_answer(kind: type[Message], data: bytes, code: grpc.StatusCode) -> bool:
    if code in CLEAN:
        return True
    try:
        message: Any = kind.FromString(data)
    except DecodeError:
        return False
    return code in OF_HELLO and message.WhichOneof("body") == "hello"


async def call(channel: grpc.aio.Channel, method: str, data: bytes) -> grpc.StatusCode:
    """Any method that takes one message; a stream that goes on is left after two of its messages."""
    kind: Any = channel.unary_stream(method)
    running = kind(data, timeout=SECONDS)
    try:
        for _ in range(3):
            if not isinstance(await running.read(), bytes):
                break
        else:
            running.cancel()
            return grpc.StatusCode.OK
    except grpc.aio.AioRpcError:
        pass
    code: grpc.StatusCode = await running.code()
    return code


async def converse(channel: grpc.aio.Channel, method: str, messages: Sequence[bytes]) -> grpc.StatusCode:
    """A long stream: these messages, then whatever it says to the end.

    A client whose write meets the end of its stream may not see the status that the service sent: its own
    library sets one in its place. Such a conversation is held again, each time more slowly: what ends the
    stream arrives before the next write then.
    """
    for number in range(MOST_TRIES):
        running = await _converse(channel, method, messages, number * PAUSE_SECONDS)
        code: grpc.StatusCode = await running.code()
        if code != grpc.StatusCode.INTERNAL or await running.details() != OF_THE_CLIENT:
            break
    return code


async def _converse(channel: grpc.aio.Channel, method: str, messages: Sequence[bytes], pause: float) -> Any:
    kind: Any = channel.stream_stream(method)
    running = kind(timeout=SECONDS)
    # Read meanwhile: a status comes after the messages before it, and only once these were taken.
    reading = asyncio.ensure_future(_read_to_the_end(running))
    try:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            for data in messages:
                await asyncio.sleep(pause)
                await running.write(data)
        await reading
    finally:
        reading.cancel()
    return running


async def _read_to_the_end(running: Any) -> None:
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        while isinstance(await running.read(), bytes):
            pass


@dataclass(frozen=True)
class Addresses:
    """Of the three services."""

    coordinator: str
    target: str
    draft: str


class Fuzz:
    """Sends hostile messages to three services and counts what comes back."""

    def __init__(self, to: Addresses) -> None:
        self._to = to
        self.codes: Counter[grpc.StatusCode] = Counter()
        # What was answered otherwise than by a clean status.
        self.faults: list[str] = []

    def _note(self, name: str, kind: type[Message], data: bytes, code: grpc.StatusCode) -> None:
        self.codes[code] += 1
        if not may_answer(kind, data, code):
            self.faults.append(f"{name}: {code} for {data[:200]!r}")

    async def unary(self, address: str, service: str, methods: dict[str, list[Message]], count: int) -> None:
        async with rpc.open_channel(address) as channel:
            for number, (name, good) in enumerate(methods.items()):
                weight = 6 if name == "Generate" else 1
                each = -(-count * weight // (len(methods) - 1 + 6))  # rounded up; Generate has most
                for data in Hostile(good, number).draw(each):
                    code = await call(channel, f"/{service}/{name}", data)
                    self._note(name, type(good[0]), data, code)

    async def stream(self, address: str, method: str, good: list[Message], count: int) -> None:
        kind: Any = type(good[0])
        end = kind(end=common_pb2.End(reason="done")).SerializeToString()
        async with rpc.open_channel(address) as channel:
            hostile = Hostile([*good, kind(hello=hello("x")), kind(end=common_pb2.End())], len(good))
            for number, data in enumerate(hostile.draw(count)):
                greeting = kind(hello=hello(f"fuzz-{number}")).SerializeToString()
                opening = [good[0].SerializeToString()] if number % 2 else []
                messages = [greeting, *opening, data, end] if number % 8 else [data, end]
                code = await converse(channel, method, messages)
                self._note(method, kind, data, code)

    async def everything(self, count: int) -> None:
        """`count` messages for each of the three services."""
        target, draft = self._to.target, self._to.draft
        describe: dict[str, list[Message]] = {"GetDescription": [common_pb2.DescribeRequest()]}
        files: dict[str, list[Message]] = {"GetTokenizer": [target_pb2.GetTokenizerRequest()]}
        few = count // 20
        await asyncio.gather(
            self.unary(self._to.coordinator, "dlite.v1.Coordinator", COORDINATOR, count),
            self.unary(target, "dlite.v1.Target", describe | files, few),
            self.stream(target, "/dlite.v1.Target/Decode", commands(), count - few),
            self.unary(draft, "dlite.v1.Draft", describe, few),
            self.stream(draft, "/dlite.v1.Draft/Propose", items(), count - few),
        )
