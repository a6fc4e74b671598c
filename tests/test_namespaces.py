"""A link through two network namespaces, slowed by the kernel: what it measures is what was set.

Needs root, `ip` and `tc`. Bandwidth is the token bucket's (`tbf`), distance `netem`'s; a kernel that was
built without one of them cannot run that case, and says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator

import pytest

from coordinator.draft_link import DraftLink
from coordinator.tuner.link_estimate import LinkReport
from deploy.bench.fake_service import PROGRAM
from deploy.bench.fakes import FeatureShape, fake_target
from deploy.bench.set_costs import VerifyCosts
from deploy.child import Child, Command
from protos import draft_pb2
from target_service.wire import describe_to
from tests.coordinator_harness import asked

pytestmark = pytest.mark.prove
SHAPE = FeatureShape(num_layers=14, width=1024)
_HERE, _THERE = "10.213.77.1", "10.213.77.2"


def run(*command: str) -> None:
    """Raises CalledProcessError."""
    subprocess.run(command, check=True, capture_output=True, text=True)


@pytest.fixture
def namespace() -> Iterator[str]:
    """A namespace that is reached at `_THERE` through the interface `<name>a`."""
    if sys.platform != "linux" or os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc")):
        pytest.skip("network namespaces need Linux, root, ip and tc")
    name = f"dl{os.getpid() % 100000}"
    near, far = f"{name}a", f"{name}b"
    try:
        run("ip", "netns", "add", name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this machine allows no network namespaces: {error.stderr.strip()}")
    try:
        run("ip", "link", "add", near, "type", "veth", "peer", "name", far, "netns", name)
        run("ip", "addr", "add", f"{_HERE}/30", "dev", near)
        run("ip", "link", "set", near, "up")
        for command in (["addr", "add", f"{_THERE}/30", "dev", far], ["link", "set", far, "up"]):
            run("ip", "-n", name, *command)
        yield name
    finally:
        run("ip", "netns", "del", name)


def slow(name: str, *discipline: str) -> None:
    """Puts a queueing discipline on both ends; skips where the kernel has none of its kind."""
    for command in (["tc"], ["ip", "netns", "exec", name, "tc"]):
        device = f"{name}{'a' if len(command) == 1 else 'b'}"
        try:
            run(*command, "qdisc", "add", "dev", device, "root", *discipline)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this kernel has no {discipline[0]}: {error.stderr.strip()}")


@contextlib.asynccontextmanager
async def drafter_in(name: str) -> AsyncIterator[str]:
    """A drafter in the namespace; its address."""
    read_end, write_end = os.pipe()
    flags = ("--costs", "1:0", "--acceptance", "1x7", "--lean", "--address", f"{_THERE}:0")
    shape = ("--layers", str(SHAPE.num_layers), "--width", str(SHAPE.width))
    program = ("ip", "netns", "exec", name, *PROGRAM)
    child = await Child.start(Command("draft", (*flags, *shape), 1, program), read_end, lambda *_: None)
    try:
        yield (await child.ready(120.0)).address
    finally:
        await child.stop()
        os.close(read_end)
        os.close(write_end)


async def measured(name: str, num_rounds: int) -> LinkReport:
    """Questions with and without features in turn."""
    async with drafter_in(name) as address:
        link = DraftLink(address, "c", describe_to(fake_target(VerifyCosts(), SHAPE).description))
        link.start()
        assert await link.wait_settled(30), link.refusal
        for number in range(1, num_rounds + 1):
            item = draft_pb2.ProposeItem(request_id="r", epoch=1, round=number, k=7, recent_tokens=[5])
            if number % 2:
                item.features.data = bytes(200_000)
            async with asyncio.timeout(30):
                await asked(link, item)
        report = link.estimate.report()
        await link.stop()
        return report


async def test_the_kernels_bandwidth_is_measured(namespace: str) -> None:
    slow(namespace, "tbf", "rate", "100mbit", "burst", "16kb", "latency", "500ms")
    report = await measured(namespace, 40)
    assert report.bytes_per_second == pytest.approx(100e6 / 8, rel=0.25)


async def test_the_kernels_distance_is_measured(namespace: str) -> None:
    slow(namespace, "netem", "delay", "10ms")
    report = await measured(namespace, 20)
    assert 0.020 <= report.rtt_p50_seconds < 0.030
