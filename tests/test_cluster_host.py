"""An actor's service is kept alive in an event loop of the actor's own, without Ray (CLUSTER, Ray; F7)."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from deploy.child import Command
from deploy.cluster.host import HostStatus, ServiceHost
from deploy.cluster.loop_thread import LoopThread
from deploy.supervision import RestartPolicy
from tests.test_local import DIES, SERVE, gone

QUICK = RestartPolicy(first_pause=0.01, longest_pause=0.05, max_failures=2**31, probe_every=600.0)


class Watched:
    """A host, and what it told."""

    def __init__(self, *programs: str) -> None:
        self._programs = list(programs)
        self.flags: list[tuple[str, ...]] = []
        self.told: list[HostStatus] = []
        self.more = threading.Semaphore(0)
        self.thread = LoopThread()
        self.host = ServiceHost(self._command, self._on_ready, policy=QUICK)
        self.task = self.thread.spawn(self.host.run())

    async def _command(self) -> Command:
        """The next program, the last one again and again."""
        program = self._programs.pop(0) if len(self._programs) > 1 else self._programs[0]
        flags = (f"--number={len(self.flags)}",)
        self.flags.append(flags)
        return Command("target", flags, 1, program=(sys.executable, "-c", program))

    async def _on_ready(self, status: HostStatus) -> None:
        self.told.append(status)
        self.more.release()

    def wait(self) -> HostStatus:
        """The next time that it serves."""
        num_untold = 0
        while not self.more.acquire(timeout=0.05):
            serves, count = self.host.status.state == "serving", self.host.status.num_starts
            num_untold = num_untold + 1 if serves and count > len(self.told) else 0
            assert num_untold < 40, "it serves, and has told nobody"
        return self.told[-1]

    def stop(self) -> None:
        async def stop() -> None:
            await self.thread.cancel(self.task)
            await self.host.stop(10.0)

        self.thread.run(stop())
        self.thread.close()


@contextmanager
def watched(*programs: str) -> Iterator[Watched]:
    found = Watched(*programs)
    try:
        yield found
    finally:
        found.stop()


def test_a_killed_service_registers_again_at_its_address() -> None:
    with watched(SERVE) as found:
        first = found.wait()
        assert (first.state, first.address, first.num_starts) == ("serving", "127.0.0.1:1", 1)
        os.kill(first.pid, signal.SIGKILL)
        second = found.wait()
        assert (second.state, second.address, second.num_starts) == ("serving", "127.0.0.1:1", 2)
        assert second.pid != first.pid
        assert found.host.status == second
        # What it is started with is asked for each time: addresses of others change.
        assert found.flags == [("--number=0",), ("--number=1",)]
        assert any("ended by signal SIGKILL" in line for line in found.host.last_lines(100))
        assert found.host.last_lines(100).count("loading") == 2
    assert gone(second.pid)
    assert found.host.status.state == "stopped"


def test_a_service_that_cannot_start_is_tried_again_and_says_why() -> None:
    with watched(DIES, DIES, SERVE) as found:
        status = found.wait()
        assert status.num_starts == 3
        assert "weights are missing" in status.error
        assert found.host.last_lines(1000).count("weights are missing") == 2


def test_a_service_ends_with_its_actor() -> None:
    """However the actor ends: here its process is killed."""
    code = f"""
import threading
from tests.test_cluster_host import Watched
found = Watched({SERVE!r})
print(found.wait().pid, flush=True)
threading.Event().wait()
"""

    async def run() -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        pid = int(await process.stdout.readline())
        assert not gone(pid)
        process.kill()
        await process.wait()
        async with asyncio.timeout(60):
            for _ in range(100_000):
                if gone(pid):
                    return
                await asyncio.sleep(0.01)

    asyncio.run(run())


def test_a_loop_whose_work_fails_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """An actor that lives and does nothing would never be started again."""
    ended = threading.Event()
    monkeypatch.setattr(os, "_exit", lambda code: ended.set())

    async def fail() -> None:
        raise RuntimeError("on purpose")

    thread = LoopThread()
    thread.spawn(fail())
    assert ended.wait(30)
    thread.close()
