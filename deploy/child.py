"""One service in a child process: started, awaited until ready, watched, stopped."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from deploy.parent_watch import VARIABLE as PARENT_PIPE
from protos.errors import Unavailable

_STDERR_LINES = 15
STOP_GRACE_SECONDS = 10.0


@dataclass(frozen=True)
class Ready:
    """What a service prints when it serves; `admin_address` is empty without an admin port."""

    address: str
    pid: int
    admin_address: str = ""


@dataclass(frozen=True)
class Command:
    """A `dlite` command line for a child.

    Args:
        name: "target", "draft" or "coordinator": the verb, and the name in messages.
        flags: its options, without --json.
        num_threads: compute threads of the process.
        program: what runs; tests put a small script here.
        environment: variables beside this process's own.
    """

    name: str
    flags: Sequence[str]
    num_threads: int
    program: Sequence[str] = (sys.executable, "-m", "deploy.cli")
    environment: Mapping[str, str] = field(default_factory=dict)


def command_at(command: Command, ready: Ready) -> Command:
    """The same command on the addresses that it had; a later flag wins."""
    admin = ("--admin-address", ready.admin_address) if ready.admin_address else ()
    return replace(command, flags=(*command.flags, "--address", ready.address, *admin))


def child_environment(num_threads: int, parent_pipe: int, base: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child: explicit threads, no network for weights, the watch on its parent."""
    threads = str(num_threads)
    return {
        **base,
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
        PARENT_PIPE: str(parent_pipe),
    }


class Child:
    """A running child process. Use on one event loop; `start` makes one."""

    def __init__(
        self, command: Command, process: asyncio.subprocess.Process, on_line: Callable[[str, str], None]
    ) -> None:
        self.command = command
        self.name = command.name
        self._process = process
        self._on_line = on_line
        self._last_lines: deque[str] = deque(maxlen=_STDERR_LINES)
        self._stderr_task = asyncio.create_task(self._read_stderr())

    @classmethod
    async def start(cls, command: Command, parent_pipe: int, on_line: Callable[[str, str], None]) -> Child:
        """Starts the process in a process group of its own, so that a terminal's Ctrl-C reaches the
        parent alone, which then stops the services in order.

        Args:
            parent_pipe: read end of the pipe of `parent_watch`.
            on_line: called with the child's name and each line of its stderr.
        """
        process = await asyncio.create_subprocess_exec(
            *(*command.program, command.name, *command.flags, "--json"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=child_environment(command.num_threads, parent_pipe, {**os.environ, **command.environment}),
            pass_fds=(parent_pipe,),
            process_group=0,
        )
        return cls(command, process, on_line)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        while True:
            try:
                line = await self._process.stderr.readline()
            except ValueError:  # a line beyond the reader's limit: what was read of it is dropped
                continue
            if not line:
                return
            text = line.decode(errors="replace").rstrip()
            self._last_lines.append(text)
            self._on_line(self.name, text)

    async def ready(self, timeout_seconds: float) -> Ready:
        """Waits for the one JSON line.

        Raises:
            Unavailable: the process ended, printed something else, or is not ready in time.
        """
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(timeout_seconds):
                line = await self._process.stdout.readline()
        except TimeoutError as error:
            raise Unavailable(
                f"the {self.name} service is not ready after {timeout_seconds:g} s{self._tail()}"
            ) from error
        if not line:
            raise await self.failure()
        try:
            record = json.loads(line)
            admin = str(record.get("admin_address", ""))
            return Ready(str(record["address"]), int(record["pid"]), admin)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Unavailable(f"the {self.name} service printed {line!r} instead of its address") from error

    async def failure(self) -> Unavailable:
        """Waits until the process has ended; the error says how, with its last words."""
        code = await self._process.wait()
        await self._stderr_task
        how = f"ended by signal {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return Unavailable(f"the {self.name} service {how}{self._tail()}")

    def _tail(self) -> str:
        lines = "".join(f"\n  {self.name}: {line}" for line in self._last_lines)
        return f"; its last lines:{lines}" if lines else ""

    async def stop(self, grace_seconds: float = STOP_GRACE_SECONDS) -> None:
        """SIGTERM, then SIGKILL to its whole group after the grace time. Does nothing once it ended."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            try:
                async with asyncio.timeout(grace_seconds):
                    await self._process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                await self._process.wait()
        await self._stderr_task
