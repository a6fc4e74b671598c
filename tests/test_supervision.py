"""Restarting what ends or hangs: back-off, giving up, and what counts as a hang (CLUSTER, failover)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator

from deploy.child import Child, Command, Ready, command_at
from deploy.supervision import Backoff, RestartPolicy, Supervised, _until_silent, keep_alive
from tests.test_local import DIES, SERVE, command

QUICK = RestartPolicy(first_pause=0.01, longest_pause=0.05, max_failures=3, probe_every=60.0)


def test_pauses_double_up_to_the_longest_and_then_it_is_given_up() -> None:
    backoff = Backoff(RestartPolicy(first_pause=1.0, longest_pause=5.0, max_failures=5))
    assert [backoff.pause_after(0.0) for _ in range(6)] == [1.0, 2.0, 4.0, 5.0, 5.0, None]


def test_a_service_that_served_long_has_no_failures_behind_it() -> None:
    backoff = Backoff(RestartPolicy(first_pause=1.0, healthy=60.0, max_failures=2))
    assert [backoff.pause_after(59.0), backoff.pause_after(59.0)] == [1.0, 2.0]
    assert [backoff.pause_after(60.0), backoff.pause_after(0.0)] == [1.0, 2.0]
    assert backoff.pause_after(0.0) is None


def test_a_restart_has_the_addresses_that_clients_know() -> None:
    first = Command("coordinator", ("--address", "127.0.0.1:0"), 1)
    again = command_at(first, Ready("127.0.0.1:7", 1, "127.0.0.1:8"))
    assert list(again.flags)[2:] == ["--address", "127.0.0.1:7", "--admin-address", "127.0.0.1:8"]


@contextlib.asynccontextmanager
async def supervised(code: str, code_again: str) -> AsyncIterator[tuple[Supervised, list[Child], list[str]]]:
    """A script, and what is started after it."""
    read_end, write_end = os.pipe()
    children: list[Child] = []
    flags: list[str] = []

    async def start(program: str, ready: Ready | None) -> tuple[Child, Ready]:
        child = await Child.start(command(program), read_end, lambda name, line: None)
        children.append(child)
        if ready is not None:
            flags.append(ready.address)
        return child, await child.ready(30)

    async def restart(_old: Child, ready: Ready) -> tuple[Child, Ready]:
        return await start(code_again, ready)

    try:
        child, ready = await start(code, None)
        yield Supervised(child, ready, restart, lambda ready: None), children, flags
    finally:
        for child in children:
            await child.stop(0.0)
        os.close(read_end)
        os.close(write_end)


async def test_a_killed_service_is_started_again() -> None:
    said: list[str] = []
    restarted = asyncio.Event()
    async with supervised(SERVE, SERVE) as (service, children, addresses):
        service.on_restart = lambda ready: restarted.set()
        keeper = asyncio.create_task(keep_alive(service, QUICK, said.append))
        for count in (1, 2):
            os.kill(service.child.pid, signal.SIGKILL)
            await asyncio.wait_for(restarted.wait(), 60)
            restarted.clear()
            assert len(children) == count + 1
        keeper.cancel()
        await asyncio.wait({keeper})
    assert addresses == ["127.0.0.1:1"] * 2
    assert said[0] == "the target service ended by signal SIGKILL; its last lines: starting again in 0.01 s"


async def test_a_service_that_cannot_start_is_given_up_with_its_last_words() -> None:
    said: list[str] = []
    async with supervised(SERVE, DIES) as (service, children, _):
        keeper = asyncio.create_task(keep_alive(service, QUICK, said.append))
        os.kill(service.child.pid, signal.SIGKILL)
        failure = await asyncio.wait_for(keeper, 60)
    assert "weights are missing" in str(failure)
    assert len(children) == 1 + QUICK.max_failures
    assert len(said) == QUICK.max_failures


@contextlib.contextmanager
def silent_port() -> Iterator[str]:
    """Takes connections, as a stopped process does, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


async def test_silence_is_a_hang_and_refusal_is_not() -> None:
    policy = RestartPolicy(probe_every=0.01, probe_timeout=0.3, max_silent=2)
    with silent_port() as address:
        await asyncio.wait_for(_until_silent(address, policy), 30)
    refusing = asyncio.create_task(_until_silent("127.0.0.1:1", policy))
    done, _ = await asyncio.wait({refusing}, timeout=1.5)
    assert not done
    refusing.cancel()
    await asyncio.wait({refusing})


async def test_a_service_that_hangs_is_killed_and_started_again() -> None:
    said: list[str] = []
    restarted = asyncio.Event()
    policy = RestartPolicy(first_pause=0.01, probe_every=0.01, probe_timeout=0.2, max_silent=2)
    with silent_port() as address:
        hanging = SERVE.replace("127.0.0.1:1", address)
        async with supervised(hanging, SERVE) as (service, children, _):
            service.on_restart = lambda ready: restarted.set()
            keeper = asyncio.create_task(keep_alive(service, policy, said.append))
            await asyncio.wait_for(restarted.wait(), 60)
            keeper.cancel()
            await asyncio.wait({keeper})
            assert len(children) == 2
    assert said[0] == "the target service does not answer: killing it"
