"""`dlite coordinator` and `dlite generate` as processes, against a table target in this one."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from coordinator.client import Answer, AsyncClient
from protos import coordinator_pb2
from tests.coordinator_fakes import TableEngine, counting, saying
from tests.coordinator_harness import request, serve_target, until

TEXT = "日本 says hello, and says hello again"

CHAT_WITHOUT_TORCH = """
import asyncio, sys
from coordinator.client import AsyncClient
from coordinator.config import CoordinatorConfig
from coordinator.startup import start_coordinator
from protos import coordinator_pb2

async def main():
    running = await start_coordinator(CoordinatorConfig(target_address=sys.argv[1]))
    async with AsyncClient(running.address) as client:
        message = coordinator_pb2.ChatMessage(role="user", content="hi")
        request = coordinator_pb2.GenerateRequest(messages=[message], temperature=0.0)
        print((await client.complete(request)).text)
    await running.stop()

asyncio.run(main())
print([name for name in ("torch", "tensorflow", "jax") if name in sys.modules])
"""


@dataclass(frozen=True)
class Done:
    """How a process ended."""

    code: int
    out: str
    err: str


async def start(*args: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, *args, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )


async def run(*args: str) -> Done:
    process = await start(*args)
    out, err = await process.communicate()
    assert process.returncode is not None
    return Done(process.returncode, out.decode(), err.decode())


async def dlite(*args: str) -> Done:
    return await run("-m", "deploy.cli", *args)


@asynccontextmanager
async def coordinator_process(engine: TableEngine) -> AsyncIterator[tuple[str, Any]]:
    """A coordinator as a process; ends with code 0 on SIGTERM, one JSON line on stdout."""
    async with serve_target(engine) as (target_address, _):
        process = await start("-m", "deploy.cli", "coordinator", "--target-address", target_address, "--json")
        assert process.stdout is not None
        ready = json.loads(await process.stdout.readline())
        assert ready["pid"] == process.pid
        try:
            yield ready["address"], process
        finally:
            process.send_signal(signal.SIGTERM)
            out, err = await process.communicate()
        assert out == b""
        assert process.returncode == 0, err.decode()
        assert b"Traceback" not in err


async def test_generate_streams_text_and_tells_usage() -> None:
    async with coordinator_process(TableEngine(saying(TEXT))) as (address, _):
        plain = await dlite("generate", "hi", "--address", address, "--temperature", "0")
        assert (plain.code, plain.out) == (0, TEXT + "\n")
        assert f"{len(TEXT.encode()) + 1} tokens" in plain.err
        off = await dlite("generate", "hi", "--address", address, "--raw", "--source", "off", "--json")
        report = json.loads(off.out)
        assert report["text"] == TEXT
        assert report["accept_length"] is None
        assert report["usage"]["prompt_tokens"] == 2
        assert report["finish_reason"] == "stop"
        cut = await dlite("generate", "hi", "--address", address, "--max-tokens", "3", "--stop", "zz")
        assert cut.out == "日\n"
        bad = await dlite("generate", "hi", "--address", address, "--temperature", "-1")
        assert bad.code == 2
        assert "temperature" in bad.err
        assert "Traceback" not in bad.err


async def test_ctrl_c_aborts_the_request() -> None:
    engine = TableEngine()
    engine.step = lambda: []  # type: ignore[method-assign]
    async with coordinator_process(engine) as (address, _):
        process = await start("-m", "deploy.cli", "generate", "hi", "--address", address)
        await until(lambda: bool(engine.sequences))
        process.send_signal(signal.SIGINT)
        _, err = await process.communicate()
        assert process.returncode == 1
        assert b"aborted" in err
        assert b"Traceback" not in err
        await until(lambda: not engine.sequences)


async def test_sigterm_drains() -> None:
    engine = TableEngine()
    step, engine.step = engine.step, lambda: []  # type: ignore[method-assign]
    async with coordinator_process(engine) as (address, process), AsyncClient(address) as client:
        fields = {"max_tokens": 20, "mode": coordinator_pb2.SPECULATION_MODE_OFF}
        answer = asyncio.create_task(client.complete(request(**fields)))
        await until(lambda: engine.is_running)
        process.send_signal(signal.SIGTERM)
        engine.step = step  # type: ignore[method-assign]
        assert len((await answer).token_ids) == 20


async def test_a_coordinator_killed_in_mid_text_costs_no_token() -> None:
    """Two processes serve the same model; the client goes on at the other one by itself (F10)."""
    held = TableEngine(counting)
    step, steps = held.step, iter(range(5))
    held.step = lambda: step() if next(steps, None) is not None else []  # type: ignore[method-assign]
    message = request(max_tokens=60, mode=coordinator_pb2.SPECULATION_MODE_OFF)
    async with coordinator_process(TableEngine(counting)) as (other, _), serve_target(held) as (target, _):
        process = await start("-m", "deploy.cli", "coordinator", "--target-address", target, "--json")
        assert process.stdout is not None
        address = json.loads(await process.stdout.readline())["address"]
        answer, starts = Answer(), 0
        async with AsyncClient(address, other) as client:
            async for response in client.generate(message):
                answer.add(response)  # raises at a gap
                starts += response.HasField("started")
                if len(answer.token_ids) == 6:
                    process.kill()
        await process.communicate()
    assert starts == 1
    assert answer.token_ids == list(range(60))
    assert answer.usage.completion_tokens == 60


async def test_a_chat_request_loads_no_torch() -> None:
    async with serve_target(TableEngine(saying(TEXT))) as (address, _):
        done = await run("-c", CHAT_WITHOUT_TORCH, address)
    assert done.out == f"{TEXT}\n[]\n", done.err


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--target-address", "a:1", "--verify-block-size", "0"),
        ("--target-address", "a:1", "--source", "oracle"),
        ("--target-address", "a:1", "--no-such-flag"),
    ],
)
async def test_bad_usage_is_code_2(flags: tuple[str, ...]) -> None:
    done = await dlite("coordinator", *flags)
    assert done.code == 2
    assert done.out == ""
    assert "Traceback" not in done.err


async def test_a_target_that_contradicts_itself_is_code_2() -> None:
    async with serve_target(TableEngine(counting), tokenizer_hash="0" * 64) as (address, _):
        done = await dlite("coordinator", "--target-address", address)
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[-1].startswith("dlite coordinator: ")
    assert "Traceback" not in done.err


async def test_nobody_at_the_address_is_code_1() -> None:
    done = await dlite("generate", "hi", "--address", "127.0.0.1:1")
    assert done.code == 1
    assert "127.0.0.1:1" in done.err
    assert "Traceback" not in done.err
