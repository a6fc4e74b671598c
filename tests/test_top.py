"""`dlite top`: what it computes and what it draws."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import pty
import re
import signal
import sys
import termios
from asyncio.subprocess import PIPE
from typing import Any

import pytest
from rich.console import Console

from coordinator.trace.remote import get_stats
from coordinator.trace.screen import bar, screen, sparkline
from coordinator.trace.snapshot import Snapshot, snapshot
from coordinator.trace.top import run_top
from protos import coordinator_pb2 as pb
from protos import rpc
from tests.coordinator_fakes import TableEngine
from tests.coordinator_harness import DraftServer, request, until
from tests.test_coordinator_cli import dlite
from tests.test_coordinator_server import drafted_stack, stack, wrong_from


def sums(source: str = "drafter", **changes: Any) -> pb.RoundSums:
    values: dict[str, Any] = {
        "num_rounds": 10,
        "num_tokens": 30,
        "num_drafted": 70,
        "num_verified": 40,
        "num_accepted": 20,
        "draft_seconds": 0.02,
        "verify_seconds": 0.10,
        "target_network_seconds": 0.01,
        "num_rounds_by_cohorts": [8, 2],
    }
    return pb.RoundSums(source=source, **{**values, **changes})


def stats(seconds: float = 10.0, **changes: Any) -> pb.GetStatsResponse:
    return pb.GetStatsResponse(model="tiny", seconds=seconds, **changes)


def later() -> pb.GetStatsResponse:
    return stats(
        12.0,
        num_running=3,
        num_waiting=2,
        num_texts=7,
        num_failed=1,
        prompt_tokens=1000,
        cached_tokens=250,
        num_tokens=500,
        rounds=[sums(num_rounds=30, num_tokens=90, num_drafted=210, num_verified=120, num_accepted=60,
                     draft_seconds=0.06, verify_seconds=0.30, target_network_seconds=0.03,
                     num_rounds_by_cohorts=[8, 12, 10]),
                sums("run", num_rounds=5, num_tokens=99, num_drafted=0, num_verified=0, num_accepted=0,
                     num_rounds_by_cohorts=[])],
        links=[
            pb.LinkStats(name="target", is_connected=True, rtt_seconds=0.0012, rtt_p99_seconds=0.004),
            pb.LinkStats(name="draft", is_connected=False, num_lost=3),
        ],
        kv=pb.KvStats(pages_held=30, pages_cached=10, num_pages=100),
    )  # fmt: skip


def found() -> Snapshot:
    return snapshot(
        stats(rounds=[sums()], num_texts=3, num_tokens=400, prompt_tokens=600, cached_tokens=150), later()
    )


def test_a_snapshot_is_the_difference_of_sums() -> None:
    one = found()
    assert one.seconds == 2.0
    assert (one.num_running, one.num_waiting, one.num_failed) == (3, 2, 1)
    assert one.tokens_per_second == 50.0
    assert one.texts_per_second == 2.0
    assert one.accept_length == 3.0
    assert one.acceptance_rate == 0.5
    assert one.mean_draft_tokens == 7.0
    assert one.mean_block_size == 5.0
    assert one.cohorts == pytest.approx({2: 0.5, 3: 0.5})
    assert one.round_ms["verify"] == pytest.approx(10.0)
    assert one.round_ms["draft"] == pytest.approx(2.0)
    assert (one.kv_held, one.kv_cached, one.prefix_hits) == (0.3, 0.1, 0.25)
    assert [(each.source, each.num_rounds) for each in one.sources] == [("drafter", 20), ("run", 5)]
    assert one.links[1].rtt_seconds is None


def test_nothing_is_made_up_where_nothing_happened() -> None:
    one = snapshot(stats(), stats(11.0))
    assert one.tokens_per_second == 0.0
    assert (one.accept_length, one.acceptance_rate, one.mean_block_size) == (None, None, None)
    assert (one.kv_held, one.prefix_hits, one.round_ms, one.cohorts) == (None, None, {}, {})


def drawn(one: Snapshot, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system="truecolor")
    console.print(screen(one, [one, one], width))
    text = re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue())  # type: ignore[attr-defined]
    return [line.rstrip() for line in text.splitlines()]


@pytest.mark.parametrize("width", [40, 60, 89, 90, 120, 200])
def test_every_figure_is_there_at_any_width(width: int) -> None:
    lines = drawn(found(), width)
    assert max(map(len, lines)) <= width
    text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", line) for line in lines)
    words = " ".join(text.split())
    for figure in (
        "50.0",
        "3.00",
        "50.0 %",
        "30.0 %",
        "25.0 %",
        "10.00 ms",
        "1.20 ms",
        "down",
        "7.00",
        "5.00",
    ):
        assert figure in words, figure
    assert "P=2" in words


@pytest.mark.parametrize("width", [40, 120])
def test_an_idle_coordinator_is_drawn(width: int) -> None:
    assert "no rounds with proposals" in " ".join(drawn(snapshot(stats(), stats(11.0)), width))


def test_sparklines_and_bars() -> None:
    assert sparkline([0, 4, 8], 10) == "▁▅█"
    assert sparkline([0, 0], 10) == "▁▁"
    assert sparkline([1, 2, 3], 2) == "▆█"
    assert sparkline([], 5) == ""
    for width in (1, 7, 40):
        counts = bar([1.0, 2.0, 0.0, 5.0], width)
        assert sum(counts) == width
        assert counts[2] == 0
    assert sum(bar([0.0, 0.0], 5)) in (0, 5)


async def test_a_snapshot_of_a_whole_coordinator() -> None:
    """Three tokens a round from a drafter that is right twice."""
    engine = TableEngine()
    async with drafted_stack(engine, DraftServer(wrong_from(engine, 2))) as (client, running, _):
        channel = rpc.open_channel(running.address)
        before = await get_stats(channel)
        await client.complete(request(max_tokens=40))
        one = snapshot(before, await get_stats(channel))
        await channel.close()
    assert one.model == "table"
    assert one.accept_length == pytest.approx(3.0, abs=0.3)
    assert one.tokens_per_second == pytest.approx(40 / one.seconds)
    assert "drafter" in {each.source for each in one.sources}
    assert {each.name for each in one.links} == {"target", "draft"}
    assert all(each.is_connected and each.rtt_seconds for each in one.links)


async def test_it_draws_until_it_is_cancelled_and_waits_for_a_coordinator_that_is_away() -> None:
    screen_file = io.StringIO()
    console = Console(file=screen_file, width=100, force_terminal=True)
    async with stack(TableEngine()) as (_, running, _):
        task = asyncio.create_task(run_top(running.address, 0.1, console))
        await until(lambda: "tokens/s" in screen_file.getvalue())
    await until(lambda: "no coordinator at" in screen_file.getvalue())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "\x1b[?1049l" in screen_file.getvalue(), "the terminal is as it was"


async def test_one_snapshot_as_json() -> None:
    async with stack(TableEngine()) as (_, running, _):
        done = await dlite("top", "--address", running.address, "--json", "--interval", "0.1")
    assert (done.code, len(done.out.splitlines())) == (0, 1)
    assert json.loads(done.out)["tokens_per_second"] == 0.0


async def test_ctrl_c_ends_it_and_leaves_the_terminal_as_it_was() -> None:
    """In a real terminal of 50 columns."""
    own, other = pty.openpty()
    termios.tcsetwinsize(other, (30, 50))
    async with stack(TableEngine()) as (_, running, _):
        program = [sys.executable, "-m", "deploy.cli", "top", "--address", running.address]
        environment = {**os.environ, "TERM": "xterm-256color"}
        process = await asyncio.create_subprocess_exec(*program, stdout=other, stderr=PIPE, env=environment)
        os.close(other)
        seen = b""
        while b"speculation" not in seen:
            seen += await asyncio.to_thread(os.read, own, 4096)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # a terminal without a program ends so
            while piece := await asyncio.to_thread(os.read, own, 4096):
                seen += piece
        _, err = await process.communicate()
    os.close(own)
    assert process.returncode == 0, err.decode()
    assert b"Traceback" not in err
    assert seen.endswith(b"\x1b[?25h\x1b[?1049l"), "the cursor is back, and what was there before"
    # The frame that the signal came into may be cut inside a character; it is gone with the other screen.
    lines = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", seen).decode(errors="replace").splitlines()
    assert max(map(len, lines)) <= 50


async def test_nobody_there_is_an_error() -> None:
    done = await dlite("top", "--address", "127.0.0.1:1", "--json")
    assert done.code == 1
    assert (await dlite("top")).code == 2
