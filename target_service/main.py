"""Runs the target service until a signal."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

import torch

from target_service.config import TargetConfig
from target_service.service import run_until_signalled, start_target_service


def main(config: TargetConfig, announce: Callable[[str], None]) -> int:
    """Builds, serves, waits for SIGINT or SIGTERM.

    Returns:
        The exit code: 0 after a signal, 1 when the engine failed.
    """
    torch.set_num_threads(config.threads)
    return asyncio.run(_serve(config, announce))


async def _serve(config: TargetConfig, announce: Callable[[str], None]) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    running = await start_target_service(config)
    announce(running.address)
    return await run_until_signalled(running, stop)
