"""The target over real gRPC: streams, generations, refusals, floods."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
import torch

from protos import codec, common_pb2, rpc, target_pb2
from target_service.build import BuiltTarget, assemble
from target_service.config import TargetConfig
from target_service.loader import from_model
from target_service.service import RunningTarget, serve
from tests.fakes import GOLDEN, KEY, plain_greedy, tiny_target
from tests.stream_gates import FLOOD_MESSAGES, Flood, gate_reads, named, number_of

PROMPT = [5, 9, 0, 17]
TIMEOUT = 10.0


def built(**changes: object) -> BuiltTarget:
    torch.set_num_threads(1)
    model = tiny_target("llama")
    config = TargetConfig.load(None, target="tiny", num_pages=64, num_tapped_layers=3, **changes)
    return assemble(from_model(model, GOLDEN / "target_qwen3"), config)


@asynccontextmanager
async def running_target() -> AsyncIterator[RunningTarget]:
    running = await serve(built(), "127.0.0.1:0")
    try:
        yield running
    finally:
        await running.stop()


class Peer:
    """A coordinator's end of one stream, message by message."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.call = channel.stream_stream("/dlite.v1.Target/Decode")()
        self.events: list[target_pb2.Event] = []

    async def send(self, message: target_pb2.TargetCommand) -> None:
        await self.call.write(message.SerializeToString())

    async def read(self) -> target_pb2.TargetEvent:
        data = await asyncio.wait_for(self.call.read(), TIMEOUT)
        assert isinstance(data, bytes), "the stream has ended"
        return target_pb2.TargetEvent.FromString(data)

    async def hello(self, name: str = "c", generation: int = 1, major: int = 1) -> target_pb2.TargetEvent:
        hello = common_pb2.Hello(
            coordinator_id=name, stream_generation=generation, protocol=common_pb2.Protocol(major=major)
        )
        await self.send(target_pb2.TargetCommand(hello=hello))
        return await self.read()

    async def command(self, *commands: target_pb2.Command) -> None:
        await self.send(target_pb2.TargetCommand(commands=target_pb2.CommandList(commands=commands)))

    async def next(self, kind: str) -> target_pb2.Event:
        """The next event of a kind."""
        while True:
            for i, event in enumerate(self.events):
                if event.WhichOneof("kind") == kind:
                    return self.events.pop(i)
            self.events += (await self.read()).events.events

    async def status(self) -> grpc.StatusCode:
        """Reads to the end and returns the status."""
        try:
            while isinstance(await asyncio.wait_for(self.call.read(), TIMEOUT), bytes):
                pass
        except grpc.aio.AioRpcError:
            pass
        return await asyncio.wait_for(self.call.code(), TIMEOUT)


def open_command(name: str = "r", epoch: int = 1, tokens: list[int] | None = None) -> target_pb2.Command:
    ids = PROMPT if tokens is None else tokens
    return target_pb2.Command(
        request_id=name,
        epoch=epoch,
        open=target_pb2.Open(
            token_ids=ids,
            num_prompt_tokens=len(ids),
            sampling_key=KEY,
            params=common_pb2.SamplingParams(max_tokens=30),
            want_features=True,
        ),
    )


@asynccontextmanager
async def peer(running: RunningTarget) -> AsyncIterator[Peer]:
    async with rpc.open_channel(running.address) as channel:
        yield Peer(channel)


async def test_a_request_over_the_wire() -> None:
    reference = plain_greedy(tiny_target("llama"), PROMPT, 8)
    async with running_target() as running, peer(running) as side:
        welcome = (await side.hello()).welcome
        assert welcome.describe.vocab_size == 61
        assert list(welcome.describe.tapped_layers) == [0, 1, 2]
        await side.command(open_command())
        first = (await side.next("verdict")).verdict
        features = (await side.next("features")).features
        assert codec.decode(features.tensor).shape == (3, 32)
        verify = target_pb2.Verify(committed_length=5, proposals=[*reference[1:4], 0])
        await side.command(target_pb2.Command(request_id="r", epoch=1, round=1, verify=verify))
        second = (await side.next("verdict")).verdict
        assert [*first.tokens, *second.tokens][:5] == reference[:5]
        assert second.num_accepted >= 3
        assert second.timing.total_us >= second.timing.forward_us > 0
        assert second.timing.step == first.timing.step + 1
        assert second.timing.step_us >= second.timing.forward_us
        assert (first.timing.step_rows, first.timing.step_prefill_rows) == (4, 4)
        assert (second.timing.step_rows, second.timing.step_prefill_rows) == (5, 0)
        assert second.timing.step_context == 4
        await side.send(target_pb2.TargetCommand(end=common_pb2.End(reason="done")))
        while (await side.read()).WhichOneof("body") != "end":
            pass
        assert await side.status() is grpc.StatusCode.OK


async def test_a_higher_generation_ends_the_older_stream() -> None:
    async with running_target() as running, peer(running) as old, peer(running) as new:
        await old.hello(generation=1)
        await old.command(open_command())
        await old.next("verdict")
        await new.hello(generation=2)
        assert await old.status() is grpc.StatusCode.ABORTED
        verify = target_pb2.Verify(committed_length=5)
        await new.command(target_pb2.Command(request_id="r", epoch=1, round=1, verify=verify))
        refused = (await new.next("refused")).refused
        assert refused.code == target_pb2.REFUSAL_CODE_OUT_OF_STEP
        assert refused.held_epoch == 0
        await new.command(open_command())  # closed epochs live as long as their stream
        await new.next("verdict")


@pytest.mark.parametrize("generation", [1, 2])
async def test_an_older_generation_is_refused(generation: int) -> None:
    async with running_target() as running, peer(running) as new, peer(running) as old:
        await new.hello(generation=2)
        with pytest.raises((AssertionError, grpc.aio.AioRpcError)):
            await old.hello(generation=generation)
        assert await old.status() is grpc.StatusCode.ABORTED
        await new.command(open_command())
        await new.next("verdict")


async def test_another_protocol_is_refused() -> None:
    async with running_target() as running, peer(running) as side:
        with pytest.raises((AssertionError, grpc.aio.AioRpcError)):
            await side.hello(major=2)
        assert await side.status() is grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize("data", [b"\xff" * 40, b"", target_pb2.TargetCommand().SerializeToString()])
async def test_garbage_ends_its_own_stream_only(data: bytes) -> None:
    async with running_target() as running, peer(running) as good, peer(running) as bad:
        await good.hello("good")
        await bad.hello("bad")
        await bad.call.write(data)
        assert await bad.status() is grpc.StatusCode.INVALID_ARGUMENT
        await good.command(open_command())
        await good.next("verdict")


async def test_the_first_message_is_hello() -> None:
    async with running_target() as running, peer(running) as side:
        await side.command(open_command())
        assert await side.status() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_bad_command_refuses_itself_only() -> None:
    async with running_target() as running, peer(running) as side:
        await side.hello()
        bad = open_command("bad")
        bad.open.params.presence_penalty = 9.0
        nameless = open_command("")
        await side.command(bad, nameless, open_command("good"))
        assert (await side.next("refused")).refused.field == "params.presence_penalty"
        assert (await side.next("refused")).refused.field == "request_id"
        assert (await side.next("verdict")).verdict.request_id == "good"


OUT_OF_RANGE = {
    "presence_penalty": 2.5,
    "frequency_penalty": float("nan"),
    "repetition_penalty": 0.0,
    "min_tokens": 2**31,
    "top_logprobs": 21,
    "top_p": 0.0,
    "min_p": 1.5,
    "mode": common_pb2.MODE_REJECTION,  # at temperature 0
}


@pytest.mark.parametrize("field", OUT_OF_RANGE)
async def test_a_parameter_out_of_range_is_named(field: str) -> None:
    async with running_target() as running, peer(running) as side:
        await side.hello()
        command = open_command()
        setattr(command.open.params, field, OUT_OF_RANGE[field])
        await side.command(command)
        assert (await side.next("refused")).refused.field == f"params.{field}"


async def test_a_big_open_comes_in_parts() -> None:
    async with running_target() as running, peer(running) as side:
        await side.hello()
        whole, halves = open_command("whole"), [open_command("parts"), open_command("parts")]
        for part, half in enumerate(halves):
            half.open.parts, half.open.part = 2, part
            del half.open.token_ids[:]
            half.open.token_ids.extend(PROMPT[2 * part : 2 * part + 2])
        await side.command(whole)
        first = (await side.next("verdict")).verdict
        await side.command(halves[0])
        await side.command(halves[1])
        second = (await side.next("verdict")).verdict
        assert list(first.tokens) == list(second.tokens)
        halves[1].epoch = 9
        await side.command(halves[1])
        assert (await side.next("refused")).refused.field == "open.part"


async def test_eof_without_end_frees_everything() -> None:
    async with running_target() as running, peer(running) as watcher:
        await watcher.hello("watcher")
        async with peer(running) as side:
            await side.hello("leaver")
            await side.command(open_command())
            await side.next("verdict")
            await side.call.done_writing()
            await side.status()
        await watcher.command(open_command("after"))
        await watcher.next("verdict")
        await watcher.command(target_pb2.Command(request_id="after", epoch=1, close=target_pb2.Close()))
        await watcher.next("closed")
        engine = running.service._built.engine
        assert engine.pool.num_available == engine.pool.num_pages
        assert len(engine.requests) == 0


@pytest.mark.parametrize("stall_seconds", [0.5, pytest.param(5.0, marks=pytest.mark.prove)])
async def test_neither_side_reads_then_all_drains(
    monkeypatch: pytest.MonkeyPatch, stall_seconds: float
) -> None:
    # The service has 400 answers to send that nobody takes, the peer 400 commands that nobody takes.
    gate = gate_reads(monkeypatch)
    async with running_target() as running, peer(running) as side:
        await side.hello()

        async def write(number: int) -> None:
            command = target_pb2.Command(request_id=named(number), epoch=1, round=1)
            command.verify.SetInParent()
            await side.command(command)

        await Flood(write, range(FLOOD_MESSAGES)).end()
        gate.clear()
        flood = Flood(write, range(FLOOD_MESSAGES, 2 * FLOOD_MESSAGES))
        await asyncio.sleep(stall_seconds)  # the subject: nobody reads for a while
        assert not flood.task.done(), "somebody has read"
        gate.set()
        await flood.end()
        answered: Counter[int] = Counter()
        while answered.total() < 2 * FLOOD_MESSAGES:
            events = (await side.read()).events.events
            answered.update(number_of(event.refused.request_id) for event in events)
        await side.send(target_pb2.TargetCommand(end=common_pb2.End(reason="done")))
        assert (await side.read()).WhichOneof("body") == "end"
        assert answered == Counter(range(2 * FLOOD_MESSAGES))


async def test_describe_and_tokenizer() -> None:
    async with running_target() as running, rpc.open_channel(running.address) as channel:
        describe = channel.unary_unary(
            "/dlite.v1.Target/GetDescription",
            response_deserializer=common_pb2.Describe.FromString,
        )
        answer = await describe(b"", timeout=TIMEOUT)
        assert answer.page_size == 16
        assert answer.num_pages == 64
        assert len(answer.embedding_hash) == 64
        assert answer.tokenizer_hash == ""
        tokenizer = channel.unary_stream("/dlite.v1.Target/GetTokenizer")(b"")
        assert [data async for data in tokenizer] == []
