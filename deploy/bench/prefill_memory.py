"""Yardstick `prefill-memory`: what the feature taps add to the memory of a long prefill.

Each arm is a process of its own, because a process does not give back all it once took.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import torch

from deploy.bench.engine_runs import THREADS, make_job
from deploy.bench.harness import BenchOptions, Outcome, interleave, medians
from deploy.demo_model import resolve_model
from protos.feature_layers import build_target_layer_ids
from target_service import fused, linear, loader
from target_service.model import TargetModel
from target_service.packing import Extension, pack

BAR = 1.05
CONTEXT = 4096
_CHUNK = 256
_PAGE_SIZE = 16
# glibc gives every larger buffer pages of its own, which leave with it: the resident size is then that
# of live tensors. Otherwise holes in the heap, which differ from run to run, are a fifth of it.
_OWN_MAPPING_BYTES = 1 << 16
_ARMS = {"taps on": 8, "taps off": 0}


async def measure(options: BenchOptions) -> Outcome:
    """Peak resident bytes above those before the prefill, pages included (they are touched first)."""
    num_cycles = 6 if options.full else 2
    folder = resolve_model(options.target)

    async def arm(num_tapped: int) -> float:
        command = (sys.executable, "-m", __name__, str(folder), str(num_tapped))
        environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(_OWN_MAPPING_BYTES)}
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, env=environment
        )
        output, _ = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"{command} ended with {process.returncode}")
        return int(output) / 2**20

    arms = {name: (lambda m=num_tapped: arm(m)) for name, num_tapped in _ARMS.items()}
    runs = await interleave(arms, num_cycles, options.say)
    values = medians(runs)
    ratio = values["taps on"].median / values["taps off"].median
    records: list[dict[str, Any]] = [{**run, "unit": "MiB", "threads": THREADS} for run in runs]
    return Outcome(ratio, "x peak extra memory, taps on / off", BAR, ratio <= BAR, records)


@torch.inference_mode()
def peak_extra_bytes(folder: Path, num_tapped: int) -> int:
    """Prefills one prompt of 4096 tokens in chunks.

    Returns:
        Highest resident size during it, less the size before.
    """
    torch.set_num_threads(THREADS)
    model = loader.load(str(folder), "float32", "cpu").model
    fused.install(model, linear.TORCH_FUSED)
    tapped = build_target_layer_ids(int(model.config.num_hidden_layers), num_tapped) if num_tapped else ()
    target = TargetModel(model, tapped, CONTEXT // _PAGE_SIZE, _PAGE_SIZE)
    target.kv.keys.fill_(0.5)
    target.kv.values.fill_(0.5)
    prompt = make_job(0, CONTEXT, 1).prompt
    pages = tuple(range(CONTEXT // _PAGE_SIZE))
    before = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts anew from here
    for start in range(0, CONTEXT, _CHUNK):
        last = start + _CHUNK == CONTEXT
        chunk = Extension(prompt[start : start + _CHUNK], start, pages, int(last))
        target.forward(pack([chunk], _PAGE_SIZE, target.device))
    return _resident("VmHWM") - before


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


if __name__ == "__main__":
    print(peak_extra_bytes(Path(sys.argv[1]), int(sys.argv[2])))
