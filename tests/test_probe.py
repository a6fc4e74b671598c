"""`dlite probe` and the files that name a machine's services (CLUSTER, Ray)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from deploy import probe as probe_module
from deploy.cli import run
from deploy.node_files import VARIABLE, forget_service, note_service, run_folder, services_here
from protos import rpc
from protos.liveness import Liveness
from tests.test_liveness import until_health


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "run"))
    monkeypatch.setattr(probe_module, "PROBE_SECONDS", 2.0)


def probe(*args: str) -> int:
    """The exit code."""
    with pytest.raises(SystemExit) as ended:
        run(["probe", *args])
    return int(ended.value.code or 0)


def test_what_a_dead_process_left_is_no_service() -> None:
    assert services_here() == {}
    note_service("a-target-0", "127.0.0.1:1")
    note_service("a-target-0", "127.0.0.1:2")
    note_service("a-draft-0", "")
    (run_folder() / "a-draft-7.json").write_text(json.dumps({"address": "127.0.0.1:3", "pid": 2**30}))
    (run_folder() / "a-draft-8.json").write_text("{")
    assert services_here() == {"a-target-0": "127.0.0.1:2", "a-draft-0": ""}
    forget_service("a-target-0")
    forget_service("a-target-0")
    assert services_here() == {"a-draft-0": ""}


def test_a_machine_without_services_is_alive_and_ready() -> None:
    assert (probe("live"), probe("ready")) == (0, 0)


def test_a_service_that_starts_is_alive_and_not_ready() -> None:
    """Its actor sees to it: ending the whole node would end its neighbours too."""
    note_service("a-target-0", "127.0.0.1:1")
    assert (probe("live"), probe("ready")) == (0, 1)
    note_service("a-target-0", "")
    assert (probe("live"), probe("ready")) == (0, 1)


def test_named_by_address_nobody_there_is_not_alive(capsys: pytest.CaptureFixture[str]) -> None:
    assert probe("live", "127.0.0.1:1") == 1
    assert "127.0.0.1:1: refused" in capsys.readouterr().err


async def test_what_a_service_says_counts() -> None:
    stuck = 0.0
    server = await rpc.start_server(rpc.Service("test.Nothing", {}), "127.0.0.1:0")
    liveness = Liveness(server, lambda: stuck, stall_seconds=10.0, look_seconds=0.005)
    note_service("a-target-0", server.address)
    try:
        assert await asyncio.to_thread(probe, "live") == 0
        assert await asyncio.to_thread(probe, "ready") == 1
        await server.set_ready(True)
        assert await asyncio.to_thread(probe, "ready", server.address) == 0
        stuck = 11.0
        await until_health(server.address, 2)
        assert await asyncio.to_thread(probe, "live") == 1
    finally:
        await liveness.stop()
        await server.stop(0)
