"""Strings a run together: warm-up, the points of a sweep, and at each the arms in turn."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from coordinator.loadtest.arrivals import Arrivals, Ramp, arrival_offsets
from coordinator.loadtest.datasets import make_scripts
from coordinator.loadtest.options import Data, Point
from coordinator.loadtest.result import ArmRun
from coordinator.loadtest.runner import Pace, Runner, Segment, Send
from coordinator.loadtest.samples import Sample
from coordinator.loadtest.workload import Arm, RequestFields, Script

WARMUP_INPUT_LEN = 16
WARMUP_OUTPUT_LEN = 8


@dataclass(frozen=True)
class Job:
    """Everything a run does but for where it sends.

    Args:
        seed: of prompts, arrivals and requests.
        baseline_blocks: 0, or into how many blocks the sessions are cut for a plain arm beside.
    """

    data: Data
    points: tuple[Point, ...]
    seed: int
    run_id: str
    burstiness: float = 1.0
    ramp: Ramp | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    baseline_blocks: int = 0
    max_seconds: float = math.inf
    num_warmups: int = 0


@dataclass(frozen=True)
class PointRun:
    """What was measured at one point.

    Args:
        first: the segment that came first.
        categories: of sessions, by their number.
        run_id: that the names of this point's requests begin with.
    """

    point: Point
    speculative: ArmRun
    plain: ArmRun | None
    first: Segment
    num_unsent: int
    categories: Mapping[int, str] = field(default_factory=dict)
    run_id: str = ""


def arm_order(num_blocks: int) -> tuple[tuple[int, Arm], ...]:
    """Block and arm in the order they run: A B, B A, A B, .. so that neither is always first."""
    both = (Arm.SPECULATIVE, Arm.PLAIN)
    return tuple(
        (block, arm) for block in range(num_blocks) for arm in (both if block % 2 == 0 else both[::-1])
    )


class Execution:
    """Runs a job through one sender.

    Args:
        send: streams the answer of a request.
        vocab_size: of the served model.
        on_sample: called with every measured request.
    """

    def __init__(
        self, job: Job, send: Send, vocab_size: int, on_sample: Callable[[Sample], None] = lambda sample: None
    ) -> None:
        self._job = job
        self._send = send
        self._vocab_size = vocab_size
        self._on_sample = on_sample

    async def warm_up(self) -> None:
        """Sends requests of their own random ids, which warm no prompt of the run."""
        if not self._job.num_warmups:
            return
        data = Data(
            num_prompts=self._job.num_warmups, input_len=WARMUP_INPUT_LEN, output_len=WARMUP_OUTPUT_LEN
        )
        scripts = make_scripts(data, self._vocab_size, random.Random(f"warm-up {self._job.seed}"))
        runner = Runner(self._send, self._common(f"{self._job.run_id}-warm-up"))
        await runner.run(scripts, Pace(max_concurrency=1), Arm.SPECULATIVE)

    async def run_point(self, number: int) -> PointRun:
        """Measures point `number` of the sweep; each has prompts of its own.

        Raises:
            InvalidRequest: the data set or a request field cannot be used.
        """
        job, point = self._job, self._job.points[number]
        rng = random.Random(f"{job.seed} {number}")
        scripts = make_scripts(job.data, self._vocab_size, rng)
        run_id = f"{job.run_id}-{number}"
        runner = Runner(self._send, self._common(run_id), self._on_sample)
        if not job.baseline_blocks:
            segment = await runner.run(scripts, self._pace(point, len(scripts), rng), Arm.SPECULATIVE)
            run = PointRun(point, ArmRun((segment,)), None, segment, segment.num_unsent)
        else:
            run = await self._both_arms(runner, scripts, point, rng)
        categories = {script.index: script.category for script in scripts}
        return replace(run, categories=categories, run_id=run_id)

    async def _both_arms(
        self, runner: Runner, scripts: tuple[Script, ...], point: Point, rng: random.Random
    ) -> PointRun:
        num_blocks = min(self._job.baseline_blocks, len(scripts))
        blocks = [scripts[number::num_blocks] for number in range(num_blocks)]
        paces = [self._pace(point, len(block), rng) for block in blocks]
        seconds = self._job.max_seconds / (2 * num_blocks)
        segments = [
            await runner.run(blocks[number], replace(paces[number], max_seconds=seconds), arm)
            for number, arm in arm_order(num_blocks)
        ]
        arms = {arm: ArmRun(tuple(each for each in segments if each.arm is arm)) for arm in Arm}
        num_unsent = sum(each.num_unsent for each in segments)
        return PointRun(point, arms[Arm.SPECULATIVE], arms[Arm.PLAIN], segments[0], num_unsent)

    def _pace(self, point: Point, num_sessions: int, rng: random.Random) -> Pace:
        job = self._job
        offsets = None
        if job.ramp is not None or not math.isinf(point.rate):
            arrivals = Arrivals(point.rate, job.burstiness, job.ramp)
            offsets = arrival_offsets(arrivals, num_sessions, rng)
        return Pace(offsets, point.concurrency, job.max_seconds)

    def _common(self, run_id: str) -> RequestFields:
        return RequestFields(self._job.fields, run_id, self._job.seed)
