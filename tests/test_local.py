"""Child processes: readiness, last words, and no survivor however the parent ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.child import Child, Command, Ready
from deploy.local import LocalStack, StackOptions
from deploy.untrained import untrained_drafter
from deploy.up import waiting_policy
from draft_service.checkpoint import read_draft_config
from protos.errors import ContractMismatch, Unavailable

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "tests" / "golden" / "target_qwen3"
# A service that serves until SIGTERM, one that ignores SIGTERM, and some that fail.
SERVE = """
import json, os, signal, sys, threading
from deploy.parent_watch import end_with_parent
end_with_parent()
print("loading", file=sys.stderr, flush=True)
print(json.dumps({"address": "127.0.0.1:1", "pid": os.getpid()}), flush=True)
threading.Event().wait()
"""
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SERVE
DIES = "import sys; print('weights are missing', file=sys.stderr); sys.exit(3)"
BABBLES = "print('hello', flush=True); import time; time.sleep(60)"
SILENT = "import time; time.sleep(60)"
THREADS = """
import json, os
print(json.dumps({"address": os.environ["OMP_NUM_THREADS"] + os.environ["MKL_NUM_THREADS"], "pid": 1}))
"""


def command(code: str, num_threads: int = 1) -> Command:
    return Command("target", (), num_threads, program=(sys.executable, "-c", code))


@contextlib.asynccontextmanager
async def running(code: str) -> AsyncIterator[Child]:
    read_end, write_end = os.pipe()
    child = await Child.start(command(code), read_end, lambda name, line: None)
    try:
        yield child
    finally:
        await child.stop(0.0)
        os.close(read_end)
        os.close(write_end)


def gone(pid: int) -> bool:
    """Ended, or a zombie that only waits for whoever adopted it to reap it."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


async def test_a_child_is_ready_when_it_says_so_and_stops_on_request() -> None:
    async with running(SERVE) as child:
        assert await child.ready(30) == Ready("127.0.0.1:1", child.pid)
        await child.stop()
        assert gone(child.pid)


async def test_a_child_that_ignores_sigterm_is_killed() -> None:
    async with running(STUBBORN) as child:
        await child.ready(30)
        await child.stop(grace_seconds=0.1)
        assert gone(child.pid)


async def test_stopping_twice_is_harmless() -> None:
    async with running(SERVE) as child:
        await child.ready(30)
        await child.stop()
        await child.stop()


async def test_a_dying_child_is_reported_with_its_last_words() -> None:
    async with running(DIES) as child:
        with pytest.raises(Unavailable, match=r"exit code 3(.|\n)*weights are missing"):
            await child.ready(30)


async def test_a_child_that_prints_something_else_is_refused() -> None:
    async with running(BABBLES) as child:
        with pytest.raises(Unavailable, match="hello"):
            await child.ready(30)


async def test_a_silent_child_is_given_up() -> None:
    async with running(SILENT) as child:
        with pytest.raises(Unavailable, match=r"not ready after 0\.1 s"):
            await child.ready(0.1)


async def test_threads_are_explicit() -> None:
    read_end, write_end = os.pipe()
    child = await Child.start(command(THREADS, 3), read_end, lambda name, line: None)
    try:
        assert (await child.ready(30)).address == "33"
    finally:
        await child.stop(0.0)
        os.close(read_end)
        os.close(write_end)


async def test_work_ends_when_a_child_dies() -> None:
    async with running(SERVE) as child:
        ready = await child.ready(30)
        stack = LocalStack(ready, ready, None, [child])
        started = asyncio.Event()

        async def work() -> None:
            started.set()
            await asyncio.Event().wait()

        guarded = asyncio.create_task(stack.guard(work()))
        await started.wait()
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(Unavailable, match=r"SIGKILL(.|\n)*loading"):
            await guarded


async def test_guarded_work_returns_its_result() -> None:
    async with running(SERVE) as child:
        ready = await child.ready(30)
        assert await LocalStack(ready, ready, None, [child]).guard(asyncio.sleep(0, 7)) == 7


PARENT = f"""
import asyncio, os, sys
from deploy.child import Child, Command
async def main():
    read_end, write_end = os.pipe()
    child = await Child.start(
        Command("target", (), 1, program=(sys.executable, "-c", {SERVE!r})), read_end, lambda n, l: None)
    print((await child.ready(30)).pid, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_no_child_survives_its_parent(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not gone(pid)
        child = os.pidfd_open(pid)
        try:
            parent.send_signal(number)
            parent.wait(20)
            assert select.select([child], [], [], 20)[0], "the child lives on"
        finally:
            os.close(child)


async def test_a_command_may_add_to_the_environment() -> None:
    code = """
import json, os
print(json.dumps({"address": os.environ["OMP_WAIT_POLICY"] + os.environ["OMP_NUM_THREADS"], "pid": 1}))
"""
    read_end, write_end = os.pipe()
    passive = replace(command(code, 2), environment={"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "9"})
    child = await Child.start(passive, read_end, lambda name, line: None)
    try:
        assert (await child.ready(30)).address == "PASSIVE2"  # threads are those of the command
    finally:
        await child.stop(0.0)
        os.close(read_end)
        os.close(write_end)


def test_threads_that_share_cores_sleep_while_they_wait() -> None:
    assert waiting_policy(2, 2) == {}
    assert waiting_policy(4, 2) == {"OMP_WAIT_POLICY": "PASSIVE"}


def test_options_become_command_lines() -> None:
    options = StackOptions(
        target=Path("/m"),
        drafter=Path("/d"),
        target_flags=("--tapped-layers", "0,1"),
        coordinator_flags=("--source", "lookup"),
        target_threads=3,
        draft_threads=2,
        environment={"OMP_WAIT_POLICY": "PASSIVE"},
    )
    target = options.target_command()
    assert list(target.flags) == ["--target", "/m", "--threads", "3", "--tapped-layers", "0,1"]
    assert target.num_threads == 3
    draft = options.draft_command()
    assert draft is not None
    assert target.environment == draft.environment == {"OMP_WAIT_POLICY": "PASSIVE"}
    assert list(draft.flags) == ["--drafter", "/d", "--target", "/m", "--threads", "2"]
    coordinator = options.coordinator_command(Ready("t:1", 1), Ready("d:2", 2))
    assert list(coordinator.flags) == [
        *("--target-address", "t:1", "--draft-address", "d:2"),
        *("--source", "lookup"),
    ]


def test_no_drafter_means_no_draft_service() -> None:
    options = StackOptions(target=Path("/m"))
    assert options.draft_command() is None
    assert "--draft-address" not in options.coordinator_command(Ready("t:1", 1), None).flags


def test_an_untrained_drafter_fits_its_target_and_is_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = untrained_drafter(TARGET)
    config = read_draft_config(folder)
    assert (config.vocab_size, config.hidden_size, config.num_target_layers) == (256, 64, 6)
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert untrained_drafter(TARGET) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written


def test_an_untrained_drafter_needs_the_targets_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "config.json").write_text('{"hidden_size": 8, "vocab_size": 5}')
    with pytest.raises(ContractMismatch, match="None"):
        untrained_drafter(tmp_path)
