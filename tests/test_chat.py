"""`dlite chat` as a process with a pipe for a keyboard, and its turns without one."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from io import StringIO
from typing import Any

from rich.console import Console

from coordinator.chat import Chat
from coordinator.client import Client
from coordinator.startup import start_coordinator
from tests.coordinator_fakes import TableEngine, counting, saying
from tests.coordinator_harness import make_config, serve_target, until


def reading(lines: list[str | type[BaseException]]) -> Any:
    """What somebody types: lines, and exceptions as input() raises them."""
    source: Iterator[str | type[BaseException]] = iter([*lines, EOFError])

    def read() -> str:
        line = next(source)
        if isinstance(line, str):
            return line
        raise line

    return read


async def talk(engine: TableEngine, lines: list[str | type[BaseException]], **fields: Any) -> str:
    """Holds a conversation; returns what stderr said."""
    notes = StringIO()
    console = Console(file=notes, width=200)

    def work(address: str) -> None:
        with Client(address) as client:
            Chat(client, "be brief", {"temperature": 0, **fields}, reading(lines), console).run()

    async with serve_target(engine) as (target, _):
        running = await start_coordinator(make_config(target_address=target))
        await asyncio.to_thread(work, running.address)
        await running.stop()
    return notes.getvalue()


def rendered(*messages: tuple[str, str]) -> str:
    text = "".join(f"<|start|>{role}\n{content}<|end|>" for role, content in messages)
    return text + "<|start|>assistant\n"


async def test_each_turn_sends_the_whole_conversation(capsys: Any) -> None:
    engine = TableEngine(saying("fine"))
    notes = await talk(engine, ["hello", "", "again", "/reset", "anew", "/what", "/exit", "never"])
    assert capsys.readouterr().out == "fine\n" * 3
    lengths = [len(ids) for ids in engine.opened]
    system, answer = ("system", "be brief"), ("assistant", "fine")
    expected = [
        rendered(system, ("user", "hello")),
        rendered(system, ("user", "hello"), answer, ("user", "again")),
        rendered(system, ("user", "anew")),
    ]
    # Special tokens are one id each.
    assert lengths == [
        len(text) - text.count("<|start|>") * 8 - text.count("<|end|>") * 6 for text in expected
    ]
    assert "[stop]" in notes
    assert "forgotten" in notes
    assert "/reset forgets" in notes


async def test_a_failed_question_is_not_kept_and_the_chat_goes_on(capsys: Any) -> None:
    engine = TableEngine(saying("fine"))
    notes = await talk(engine, ["x" * 600, KeyboardInterrupt, "hello"])
    assert "never fit" in notes
    assert capsys.readouterr().out == "fine\n"
    assert len(engine.opened) == 1


async def start(*args: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "deploy.cli", "chat", *args, stdin=pipe, stdout=pipe, stderr=pipe
    )


async def test_ctrl_c_ends_the_answer_and_not_the_chat() -> None:
    engine = TableEngine(counting)
    step, held = engine.step, [True]
    engine.step = lambda: [] if held[0] else step()  # type: ignore[method-assign]
    async with serve_target(engine) as (target, _):
        running = await start_coordinator(make_config(target_address=target))
        process = await start("--address", running.address, "--max-tokens", "9")
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"hello\n")
        await until(lambda: bool(engine.sequences))
        process.send_signal(signal.SIGINT)
        await until(lambda: not engine.sequences)
        held[0] = False
        process.stdin.write(b"go on\n")
        await until(lambda: len(engine.opened) == 2)
        process.stdin.write_eof()
        _, err = await process.communicate()
        await running.stop()
    assert process.returncode == 0, err.decode()
    assert b"aborted" in err
    assert b"Traceback" not in err
    assert b"[length]" in err


async def test_nobody_at_the_address_is_code_1() -> None:
    process = await start("--address", "127.0.0.1:1")
    _, err = await process.communicate()
    assert process.returncode == 1
    assert b"Traceback" not in err
