"""`dlite top`: asks a coordinator again and again and draws the differences."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.live import Live

from coordinator.trace.remote import get_stats
from coordinator.trace.screen import screen, waiting_screen
from coordinator.trace.snapshot import Snapshot, snapshot
from protos import rpc
from protos.errors import Unavailable
from protos.security import Address

_HISTORY = 120


async def snapshot_json(address: Address, interval_seconds: float) -> dict[str, Any]:
    """One snapshot of the next interval.

    Raises:
        DliteError: there is no such coordinator.
    """
    channel = rpc.open_channel(address)
    try:
        before = await get_stats(channel)
        await asyncio.sleep(interval_seconds)
        return asdict(snapshot(before, await get_stats(channel)))
    finally:
        await channel.close()


async def run_top(address: Address, interval_seconds: float, console: Console | None = None) -> None:
    """Draws until it is cancelled; a coordinator that is away is waited for.

    Raises:
        DliteError: it answers, but not this question.
    """
    console = console or Console()
    channel = rpc.open_channel(address)
    history: deque[Snapshot] = deque(maxlen=_HISTORY)
    before = None
    try:
        with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
            while True:
                try:
                    after = await get_stats(channel)
                except Unavailable as error:
                    before = None
                    live.update(waiting_screen(str(address), str(error)), refresh=True)
                else:
                    if before is not None and after.seconds > before.seconds:
                        history.append(snapshot(before, after))
                        live.update(screen(history[-1], history, console.width), refresh=True)
                    before = after
                await asyncio.sleep(interval_seconds if history else min(interval_seconds, 0.2))
    finally:
        await channel.close()
