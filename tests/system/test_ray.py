"""Actors killed, scaled and swapped under load: every text is as if nothing had been (CLUSTER, Ray)."""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from coordinator.client import AsyncClient
from coordinator.swap_job import SwapOptions
from tests.system.ray_world import (
    NAME,
    Load,
    ask,
    doors,
    members,
    num_running,
    request,
    spec,
    until_idle,
)

if TYPE_CHECKING:
    from deploy.cluster.ray_cluster import Cluster

pytestmark = [pytest.mark.prove, pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]
NUM_CANCELS = 300


@pytest.fixture(scope="module")
def ray_address() -> Iterator[str]:
    from deploy.cluster.local_ray import local_ray

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        with local_ray(16) as address:
            yield address


@pytest.fixture(scope="module")
def cluster(ray_address: str) -> Iterator[Cluster]:
    from deploy.cluster.ray_cluster import Cluster

    found = Cluster(NAME)
    try:
        found.up(spec(), 300, print)
        yield found
    finally:
        found.down(print)


def kill(name: str) -> None:
    """As a node that breaks would: the actor's process is gone, and Ray starts it again."""
    import ray

    from deploy.cluster.ray_fleet import handle_of

    ray.kill(handle_of(name), no_restart=False)


async def kill_in_mid_text(cluster: Cluster, load: Load, name: str) -> None:
    """Kills a replica while it has work and texts are in their middle; waits until it is back."""
    before = (await members(cluster))[name]
    for _ in range(2000):
        seen = (await ask(cluster, "status"))["coordinators"]
        loads = [r for found in seen.values() for r in found["replicas"] if r["address"] == before["address"]]
        is_busy = before["kind"] != "target" or any(each["num_running"] for each in loads)
        if is_busy and any(10 < count < 100 for count in load.in_middle.values()):
            break
    else:
        raise AssertionError(f"{name} has nothing to do")
    await asyncio.to_thread(kill, name)
    async with asyncio.timeout(180):
        while True:
            now = (await members(cluster))[name]
            if now["state"] == "serving" and now["pid"] != before["pid"]:
                break
            await asyncio.sleep(0.2)
    await load.more_texts(3)


async def test_actors_killed_under_load_lose_no_request(cluster: Cluster) -> None:
    """A target, a drafter, a coordinator, and the controller: each text whole, each actor back and used."""
    load = Load()
    async with load.running(await doors(cluster)):
        await asyncio.to_thread(kill, f"{NAME}-controller")  # first: what follows registers with the new one
        await kill_in_mid_text(cluster, load, f"{NAME}-target-0")
        await kill_in_mid_text(cluster, load, f"{NAME}-draft-0")
        await kill_in_mid_text(cluster, load, f"{NAME}-coordinator-0")
    assert not load.wrong
    await until_idle(cluster)
    status = await ask(cluster, "status")
    addresses = {each["address"] for each in status["members"] if each["kind"] != "coordinator"}
    assert len(status["coordinators"]) == 2
    for found in status["coordinators"].values():
        assert {each["address"] for each in found["replicas"] if each["state"] == "serving"} == addresses


async def test_scaling_and_draining_under_load_lose_no_request(cluster: Cluster) -> None:
    load = Load()
    async with load.running(await doors(cluster)):
        for kind, count in (("draft", 3), ("target", 3), ("draft", 1), ("target", 2)):
            changes = await asyncio.to_thread(cluster.scale, kind, count, 180.0)
            assert len(changes["created"]) + len(changes["ended"]) >= 1
            await load.more_texts(2)
    await until_idle(cluster)


async def test_drafters_swapped_under_load_lose_no_request(cluster: Cluster) -> None:
    """Asked not to compare, they stay; worse ones go by themselves.

    Drawn text, with coupled noise: there the untrained golden drafter has a fifth of its first proposals
    accepted, and the one that learnt a few greedy texts by heart a twentieth.
    """
    load = Load()
    better, worse = spec("draft_dlite_v1_g1"), spec()
    options = SwapOptions(num_rounds=200, watch_seconds=120.0)
    before = [each for each in (await members(cluster)).values() if each["kind"] == "draft"]
    async with load.running(await doors(cluster)):
        result = await asyncio.to_thread(cluster.swap_drafters, better, replace(options, num_rounds=0), print)
        assert result["is_kept"], result
        await load.more_texts(2)
        result = await asyncio.to_thread(cluster.swap_drafters, worse, options, print)
        assert not result["is_kept"], result
        assert result["accept_length_after"] < result["accept_length_before"]
        await load.more_texts(2)
    drafters = [each for each in (await members(cluster)).values() if each["kind"] == "draft"]
    assert len(drafters) == len(before)
    assert not (await asyncio.to_thread(cluster.changes, better))["differing"]


async def test_cancels_leave_nothing_running(cluster: Cluster) -> None:
    """F10: 300 texts left at a random moment, a target's actor killed among them."""
    draw = random.Random(10)

    async def leave(client: AsyncClient, number: int) -> None:
        message = request(number % 6)
        message.request_id = f"left-{number}"
        work = asyncio.create_task(client.complete(message))
        await asyncio.wait({work}, timeout=draw.uniform(0.0, 0.5))
        work.cancel()
        await asyncio.wait({work})

    async with AsyncClient(*await doors(cluster)) as client:
        for start in range(0, NUM_CANCELS, 10):
            if start == NUM_CANCELS // 2:
                await asyncio.to_thread(kill, f"{NAME}-target-1")
            await asyncio.gather(*(leave(client, number) for number in range(start, start + 10)))
    await until_idle(cluster)
    assert await num_running(cluster) == 0


async def test_the_command_line_from_another_process(cluster: Cluster, ray_address: str) -> None:
    async def dlite(*args: str) -> tuple[int, str]:
        command = (sys.executable, "-m", "deploy.cli", "deploy", *args, "--ray-address", ray_address)
        process = await asyncio.create_subprocess_exec(*command, stdout=-1, stderr=-1, env=dict(os.environ))
        out, _ = await process.communicate()
        return process.returncode or 0, out.decode()

    code, out = await dlite("status", NAME, "--json")
    assert code == 0
    assert json.loads(out).keys() == {"name", "members", "coordinators"}
    assert (await dlite("logs", f"{NAME}-target-0", NAME))[1].count("target ready on") >= 1
    assert (await dlite("drain", f"{NAME}-target-7", NAME))[0] == 2
    assert (await dlite("status", "nothing"))[0] == 2
