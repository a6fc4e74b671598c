"""Work that grows with a prompt stays off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
# Tokenising and indexing so many characters (or ids) takes less than handing them to a thread.
OFFLOAD_CHARS = 8 * 1024


async def beside_the_loop(size: int, work: Callable[[], T]) -> T:
    """Does the work of a prompt of `size` characters or ids: at once, or a long one in a thread."""
    if size <= OFFLOAD_CHARS:
        return work()
    return await asyncio.get_running_loop().run_in_executor(None, work)
