"""Several coordinators on one pair of fake services: arms that differ in a coordinator's setting stand
side by side, so that their runs can be interleaved."""

from __future__ import annotations

import asyncio
import contextlib
import os
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from coordinator.client import AsyncClient
from deploy.bench.fake_service import FakeStackOptions
from deploy.bench.harness import Say
from deploy.child import Child, Command, Ready
from deploy.local import STARTUP_SECONDS, LocalStack, local_stack

T = TypeVar("T")


class Guard(Protocol):
    """Services that run: work ends with an error when one of them ends."""

    async def guard(self, work: Awaitable[T]) -> T: ...


@dataclass(frozen=True)
class Front:
    """One coordinator and a client of it."""

    ready: Ready
    client: AsyncClient


@dataclass(frozen=True)
class Variant:
    """A coordinator's settings: flags of its command, variables of its environment."""

    flags: tuple[str, ...] = ()
    environment: Mapping[str, str] | None = None


# How yardsticks start what they measure; tests start it in their own process.
Start = Callable[
    [FakeStackOptions, Mapping[str, Variant], Say],
    contextlib.AbstractAsyncContextManager[tuple[Guard, dict[str, Front]]],
]


def emulated(rtt_ms: float) -> Variant:
    """Half of a distance on either link: T_net is all of it."""
    if not rtt_ms:
        return Variant()
    half = f"{rtt_ms / 2:g}ms"
    return Variant(("--emulate-target-link", half, "--emulate-draft-link", half))


@contextlib.asynccontextmanager
async def fronts(
    options: FakeStackOptions, variants: Mapping[str, Variant], say: Say
) -> AsyncIterator[tuple[Guard, dict[str, Front]]]:
    """Starts one pair of services and a coordinator for each variant, besides the stack's own."""
    read_end, write_end = os.pipe()
    children: list[Child] = []
    async with contextlib.AsyncExitStack() as entered:
        stack = await entered.enter_async_context(local_stack(options, say))
        try:
            found = {}
            for name, variant in variants.items():
                child = await Child.start(_command(stack, variant), read_end, lambda *_: None)
                children.append(child)
                ready = await child.ready(STARTUP_SECONDS)
                client = await entered.enter_async_context(AsyncClient(ready.address))
                found[name] = Front(ready, client)
            yield stack, found
        finally:
            os.close(read_end)
            for child in reversed(children):
                await asyncio.shield(child.stop())
            os.close(write_end)


def _command(stack: LocalStack, variant: Variant) -> Command:
    addresses = ["--target-address", stack.target.address]
    if stack.draft is not None:
        addresses += ["--draft-address", stack.draft.address]
    return Command("coordinator", (*addresses, *variant.flags), 1, environment=variant.environment or {})


async def link_rtt_seconds(front: Front) -> float:
    """Median round trips of both links together, as the coordinator has measured them."""
    url = f"http://{front.ready.admin_address}/metrics"
    text = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=10).read().decode())
    found = [
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith("dlite_link_rtt_quantile_seconds") and 'quantile="0.5"' in line
    ]
    return sum(found)
