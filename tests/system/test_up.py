"""`dlite up` as a user runs it: three processes that start, serve and end together."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from coordinator.client import AsyncClient
from protos import coordinator_pb2
from tests.fakes import GOLDEN

TARGET = GOLDEN / "target_qwen3"
DRAFT = GOLDEN / "draft_dlite_v1_g1"
SECONDS = 120


@dataclass(eq=False)
class Up:
    """A running `dlite up`."""

    process: subprocess.Popen[str]
    ready: dict[str, Any]
    children: dict[str, int]  # name -> pidfd, readable once the process has ended

    def wait_ended(self) -> tuple[int, str]:
        """Exit code and stderr, after all children are gone too."""
        _, stderr = self.process.communicate(timeout=SECONDS)
        for name, child in self.children.items():
            assert select.select([child], [], [], SECONDS)[0], f"{name} lives on"
        return self.process.returncode, stderr


@contextlib.contextmanager
def up(*flags: str, starts: bool = True) -> Iterator[Up]:
    command = [sys.executable, "-m", "deploy.cli", "up", "--target", str(TARGET), "--json", *flags]
    # A session of its own: the terminal of a test run sends its signals elsewhere.
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    children: dict[str, int] = {}
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert bool(line) == starts, process.communicate()[1]
        ready = json.loads(line) if starts else {}
        for name in ("coordinator", "target", "draft"):
            if ready.get(name):
                children[name] = os.pidfd_open(ready[name]["pid"])
        yield Up(process, ready, children)
    finally:
        process.kill()
        process.communicate()
        for child in children.values():
            os.close(child)


async def test_up_serves_and_ends_with_ctrl_c() -> None:
    with up("--drafter", str(DRAFT)) as system:
        assert set(system.ready) == {"coordinator", "target", "draft", "model", "drafter"}
        assert (system.ready["model"], system.ready["drafter"]) == (str(TARGET), str(DRAFT))
        assert len({system.ready[name]["pid"] for name in system.children}) == 3
        async with AsyncClient(system.ready["coordinator"]["address"]) as client:
            request = coordinator_pb2.GenerateRequest(token_ids=[5, 6, 7], max_tokens=12, temperature=0.0)
            request.ignore_eos = True
            answer = await client.complete(request)
            info = await client.server_info()
        assert len(answer.token_ids) == 12
        assert info.drafter_connected
        os.kill(system.process.pid, signal.SIGINT)
        code, stderr = system.wait_ended()
        assert code == 0, stderr
        assert "Traceback" not in stderr


def test_without_a_drafter_there_are_two_services() -> None:
    with up("--drafter", "none") as system:
        assert system.ready["draft"] is None
        assert system.ready["drafter"] is None
        assert set(system.children) == {"coordinator", "target"}
        os.kill(system.process.pid, signal.SIGTERM)
        assert system.wait_ended()[0] == 0


@pytest.mark.parametrize("name", ["target", "coordinator"])
def test_a_dying_service_ends_the_others_and_is_named(name: str) -> None:
    with up("--drafter", "none", "--max-restarts", "0") as system:
        os.kill(system.ready[name]["pid"], signal.SIGKILL)
        code, stderr = system.wait_ended()
        assert code == 1
        assert f"the {name} service ended by signal SIGKILL" in stderr
        assert "Traceback" not in stderr


def test_a_killed_parent_leaves_no_service() -> None:
    with up("--drafter", "none") as system:
        system.process.kill()
        system.wait_ended()


def test_a_service_that_cannot_start_is_a_clear_error() -> None:
    with up("--drafter", "none", "--verify-block-size", "999", starts=False) as system:
        code, stderr = system.wait_ended()
        assert code == 1
        assert "the coordinator service ended with exit code" in stderr
        assert "verify_block_size" in stderr
