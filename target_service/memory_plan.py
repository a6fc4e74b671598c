"""How many pages fit, decided once at start: running out in mid-run is then impossible.

What is left of the memory after the weights, less what the largest step takes, less a headroom of
15 %, is the pool's; the pool is written once at start, so the system has really given it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from protos.errors import InvalidRequest

HEADROOM = 0.15
# Bytes a deciding row takes for each token of the vocabulary: logits, law, hashes, noise.
_BYTES_PER_LOGIT = 32
_MIB = 1 << 20


@dataclass(frozen=True)
class StepSize:
    """The largest step: rows, deciding rows, and widths of the model.

    Args:
        rows: prefill rows and verified rows of one step.
        decision_rows: of them, rows that decide.
        hidden_size, intermediate_size, vocab_size: widths of the model.
        dtype_bytes: of an activation.
    """

    rows: int
    decision_rows: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    dtype_bytes: int

    def num_bytes(self) -> int:
        """An upper estimate: eight hidden vectors and three MLP vectors a row, and the decisions."""
        activations = self.rows * (8 * self.hidden_size + 3 * self.intermediate_size) * self.dtype_bytes
        return activations + self.decision_rows * self.vocab_size * _BYTES_PER_LOGIT


@dataclass(frozen=True)
class PoolWish:
    """What the configuration asks for; num_pages 0 means as many as fit, at most max_bytes."""

    num_pages: int
    max_bytes: int
    max_useful_pages: int


def available_bytes(device: torch.device) -> int:
    """Memory that can still be taken on a device; on the CPU within the container's limit."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return min(int(line.split()[1]) * 1024, _container_room())
    raise InvalidRequest("this system does not tell its memory: set num_pages", field="num_pages")


def _container_room() -> int:
    """What a memory limit of this container leaves; unlimited without one."""
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if not (limit.exists() and used.exists()):
        return 1 << 62
    text = limit.read_text().strip()
    return 1 << 62 if text == "max" else int(text) - int(used.read_text())


def plan_pages(wish: PoolWish, page_bytes: int, step_bytes: int, available: int) -> int:
    """Pages of the pool.

    Raises:
        InvalidRequest: no page fits, or more are asked for than fit; with the numbers.
    """
    room = int((available - step_bytes) * (1 - HEADROOM))
    if wish.num_pages:
        wanted = wish.num_pages * page_bytes
        if wanted > room:
            raise InvalidRequest(
                f"{wish.num_pages} pages take {wanted // _MIB} MiB, {max(room, 0) // _MIB} MiB are left for "
                f"them of {available // _MIB} MiB ({step_bytes // _MIB} MiB for a step, "
                f"{HEADROOM:.0%} headroom): ask for at most {max(room, 0) // page_bytes}",
                field="num_pages",
            )
        return wish.num_pages
    pages = min(wish.max_useful_pages, min(wish.max_bytes, room) // page_bytes)
    if pages < 1:
        raise InvalidRequest(
            f"no page of {page_bytes} bytes fits: {available // _MIB} MiB are available, a step takes "
            f"{step_bytes // _MIB} MiB, max_pool_bytes is {wish.max_bytes}",
            field="max_pool_bytes",
        )
    return pages
