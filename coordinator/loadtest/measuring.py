"""One load test against a coordinator: waits until it is there, runs all points, shows progress."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from coordinator.client import AsyncClient, ClientOptions
from coordinator.loadtest.document import Heading, details, point_result
from coordinator.loadtest.execution import Execution, Job, PointRun
from coordinator.loadtest.options import Shown
from coordinator.loadtest.round_watch import RoundLog, watching
from coordinator.loadtest.rounds import PointRounds, rounds_of_point
from coordinator.loadtest.samples import Sample, Status
from protos import coordinator_pb2
from protos.errors import InvalidRequest, Unavailable
from protos.security import Address

READY_PAUSE_SECONDS = 0.2


@dataclass(frozen=True)
class Where:
    """Where a load test sends, and how long it waits.

    Args:
        watches_rounds: also listens to the coordinator's rounds; rounds_path: and writes them there.
        resume_seconds: how long a broken stream is resumed; 0 counts it as failed.
        request_seconds: a request fails with TimedOut after this time; None: never.
    """

    addresses: tuple[Address, ...]
    ready_seconds: float = 0.0
    resume_seconds: float = 0.0
    request_seconds: float | None = None
    watches_rounds: bool = False
    rounds_path: Path | None = None


@dataclass(frozen=True)
class Measured:
    """One point: its result, and each request and round for those who want them."""

    result: dict[str, Any]
    details: dict[str, Any]
    rounds: PointRounds = field(default_factory=PointRounds)


async def measure(job: Job, where: Where, shown: Shown, heading: Heading) -> tuple[Measured, ...]:
    """Runs the job; model and tokenizer of the heading are filled in from the server.

    Raises:
        DliteError: no coordinator there, or the job cannot be run.
    """
    options = ClientOptions(patience_seconds=where.resume_seconds)
    async with AsyncClient(*where.addresses, options=options) as client:
        info = await wait_ready(client.server_info, where.ready_seconds)
        model = info.target.model
        heading = replace(
            heading, model_id=heading.model_id or model, tokenizer_id=heading.tokenizer_id or model
        )

        def send(
            message: coordinator_pb2.GenerateRequest,
        ) -> AsyncGenerator[coordinator_pb2.GenerateResponse]:
            return client.generate(message, where.request_seconds)

        async with AsyncExitStack() as watches:
            log = await _watch(where, watches)
            with _ProgressBar(job) as on_sample:
                execution = Execution(job, send, info.target.vocab_size, on_sample)
                await execution.warm_up()
                runs = [await execution.run_point(number) for number in range(len(job.points))]
        heading = replace(heading, warnings=(*heading.warnings, *_about_rounds(log, where)))
        return tuple(
            Measured(point_result(run, job, heading, shown), details(run), _rounds_of(log, run))
            for run in runs
        )


async def _watch(where: Where, watches: AsyncExitStack) -> RoundLog | None:
    if where.rounds_path and len(where.addresses) > 1:
        raise InvalidRequest("rounds are those of one coordinator: give one address", field="--save-rounds")
    if not (where.watches_rounds or where.rounds_path) or len(where.addresses) > 1:
        return None
    return await watches.enter_async_context(watching(where.addresses[0], where.rounds_path))


def _about_rounds(log: RoundLog | None, where: Where) -> list[str]:
    """Warnings. Raises Unavailable when rounds were to be saved and the coordinator tells none."""
    if log is None:
        return []
    if log.failure and log.header is None and where.rounds_path:
        raise Unavailable(f"the coordinator tells no rounds: {log.failure}")
    found = [f"rounds were not told to the end: {log.failure}"] if log.failure else []
    return found + ([f"{log.num_lost} rounds are missing"] if log.num_lost else [])


def _rounds_of(log: RoundLog | None, run: PointRun) -> PointRounds:
    if log is None or log.header is None:
        return PointRounds()
    return rounds_of_point(log.records, run.run_id, run.categories, log.header.about)


async def wait_ready(ask: Callable[[], Any], timeout_seconds: float) -> coordinator_pb2.GetServerInfoResponse:
    """Asks until there is an answer.

    Raises:
        Unavailable: there was none in time.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_seconds
    while True:
        try:
            info: coordinator_pb2.GetServerInfoResponse = await ask()
            return info
        except Unavailable:
            if loop.time() >= deadline:
                raise
        await asyncio.sleep(READY_PAUSE_SECONDS)


class _ProgressBar:
    """A bar on stderr; entering it gives the function that takes finished requests."""

    def __init__(self, job: Job) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._num_failed = 0
        self._task = self._bar.add_task("requests", total=_num_requests(job))

    def __enter__(self) -> Callable[[Sample], None]:
        self._bar.start()
        return self._on_sample

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def _on_sample(self, sample: Sample) -> None:
        self._num_failed += sample.status is Status.FAILED
        text = f"requests, {self._num_failed} failed" if self._num_failed else "requests"
        self._bar.update(self._task, advance=1, description=text)


def _num_requests(job: Job) -> int | None:
    """Unknown for a file, whose sessions differ in length."""
    if job.data.path is not None:
        return None
    turns = job.data.turns if job.data.name == "agent" else 1
    return job.data.num_prompts * turns * len(job.points) * (2 if job.baseline_blocks else 1)


def heading_now(label: str | None, metadata: dict[str, str], warnings: Sequence[str]) -> Heading:
    return Heading(datetime.now(), "", "", label, metadata, tuple(warnings))
