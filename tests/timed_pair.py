"""A pair of services with set costs on a clock that jumps: a minute of rounds takes a second.

The target computes in steps (all that is queued when a step begins is in it), the drafter in batches;
both tell what a step cost as the real services do. The coordinator's own time is not on this clock.
"""

from __future__ import annotations

import asyncio
import hashlib
import selectors
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from coordinator.commands import close_command
from coordinator.coordinator import Coordinator
from coordinator.ports import Inbox
from coordinator.services import Backends
from coordinator.target_members import members_of
from coordinator.tuner.link_estimate import LinkEstimate
from protos import common_pb2, draft_pb2, target_pb2
from tests.coordinator_fakes import TableEngine, V, counting
from tests.coordinator_harness import describe_drafter, describe_target, make_config, shared_tokenizer

Confidence = Callable[[str, int, int], float]


class _Jump(selectors.SelectSelector):
    """Waits for nothing: the time until the next timer passes at once."""

    def __init__(self, clock: list[float]) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready and timeout is None:
            return super().select(None)
        if not ready and timeout is not None and timeout > 0:
            self._clock[0] += timeout
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is that of its timers."""

    def __init__(self) -> None:
        self._clock_now = [0.0]
        super().__init__(_Jump(self._clock_now))

    def time(self) -> float:
        return self._clock_now[0]


def run_jumping(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Runs a coroutine on a jumping clock."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(work())


@dataclass(frozen=True)
class PairCosts:
    """The truth: seconds by rows, by batch and k, and of a round trip to each service."""

    verify: Callable[[int], float]
    draft: Callable[[int, int], float]
    target_rtt: float = 0.0
    draft_rtt: float = 0.0


class TimedTarget:
    """A `TargetPort`: a table target that takes its time."""

    def __init__(self, costs: PairCosts, engine: TableEngine | None = None) -> None:
        self.engine = engine or TableEngine(counting)
        self.describe = describe_target(max_context=1 << 20)
        self.is_connected = True
        self.estimate = LinkEstimate()
        self.steps: list[tuple[float, int]] = []
        # The text and what was proposed for it, of every verification.
        self.verified: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self._costs = costs
        self._inboxes: dict[str, Inbox] = {}
        self._queued: list[target_pb2.Command] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def last_heard_seconds(self) -> float:
        return asyncio.get_running_loop().time()

    async def wait_connected(self, timeout_seconds: float) -> bool:
        return True

    def attach(self, request_id: str, inbox: Inbox) -> None:
        self._inboxes[request_id] = inbox

    def measure_into(self, estimate: LinkEstimate) -> None:
        self.estimate = estimate

    def send(self, commands: Sequence[target_pb2.Command]) -> None:
        asyncio.get_running_loop().call_later(self._costs.target_rtt / 2, self._arrive, list(commands))

    def close(self, request_id: str, epoch: int, keep_length: int) -> None:
        self._inboxes.pop(request_id, None)
        if epoch:
            self.send([close_command(request_id, epoch, keep_length)])

    def suspect(self) -> None:
        raise AssertionError("nothing is lost here")

    def _arrive(self, commands: list[target_pb2.Command]) -> None:
        for command in commands:
            if command.WhichOneof("kind") in ("open", "verify"):
                self._queued.append(command)
            else:
                self._emit(self.engine.handle(command), None)
        if self._task is None and (self._queued or self.engine.is_running):
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while self._queued or self.engine.is_running:
            # Whatever arrives at this instant is in the step.
            await asyncio.sleep(0)
            queued, self._queued = self._queued, []
            verifies = [command for command in queued if command.HasField("verify")]
            running = [name for name, one in self.engine.sequences.items() if one.running is not None]
            rows = sum(1 + len(command.verify.proposals) for command in verifies) + len(running)
            seconds = self._costs.verify(rows) if rows else 0.001
            self.steps.append((asyncio.get_running_loop().time(), rows))
            for command in verifies:
                text = self.engine.sequences[command.request_id].tokens
                self.verified.append((tuple(text), tuple(command.verify.proposals)))
            await asyncio.sleep(seconds)
            timing = common_pb2.Timing(
                step=len(self.steps),
                step_rows=rows,
                step_prefill_rows=len(queued) - len(verifies),
                step_us=round(seconds * 1e6),
                total_us=round(seconds * 1e6),
            )
            events = [event for command in queued for event in self.engine.handle(command)]
            # A Run that came during the step waits for the next one.
            known = [name for name in running if name in self.engine.sequences]
            for name in known:
                sequence = self.engine.sequences[name]
                if sequence.running is not None:
                    events += self.engine._run_token(name, sequence)
            self._emit(events, timing)
        self._task = None

    def _emit(self, events: list[target_pb2.Event], timing: common_pb2.Timing | None) -> None:
        for event in events:
            if event.HasField("verdict") and timing is not None:
                event.verdict.timing.CopyFrom(timing)
        asyncio.get_running_loop().call_later(self._costs.target_rtt / 2, self._deliver, events)

    def _deliver(self, events: list[target_pb2.Event]) -> None:
        if events and self._costs.target_rtt:
            self.estimate.note(self._costs.target_rtt, 500)
        for event in events:
            body = getattr(event, str(event.WhichOneof("kind")))
            if body.request_id in self._inboxes:
                self._inboxes[body.request_id].put(event)


def coin(request_id: str, position: int, j: int) -> float:
    """Uniform in [0, 1), the same in every run."""
    digest = hashlib.blake2b(f"{request_id}/{position}/{j}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64


@dataclass(eq=False)
class TimedDrafter:
    """A `DraftPort` that is right with a set probability, which may change with the text's length.

    Args:
        acceptance: by request id, generated tokens and j (1-based).
        confidence: what it tells of each proposal; None tells nothing.
    """

    costs: PairCosts
    target: TimedTarget
    acceptance: Confidence
    confidence: Confidence | None = None
    describe: common_pb2.Describe | None = field(default_factory=describe_drafter)
    refusal: str = ""
    is_available: bool = True
    batches: list[tuple[float, tuple[str, ...]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        # The position of the anchor, and what was proposed behind it.
        self.answers: list[tuple[int, tuple[int, ...]]] = []
        self.estimate = LinkEstimate()
        self._queued: list[tuple[draft_pb2.ProposeItem, asyncio.Future[draft_pb2.Proposal]]] = []
        self._task: asyncio.Task[None] | None = None

    def measure_into(self, estimate: LinkEstimate) -> None:
        self.estimate = estimate

    def note_failure(self, asked: Awaitable[draft_pb2.Proposal]) -> None:
        raise AssertionError("nothing fails here")

    def propose(self, item: draft_pb2.ProposeItem, cohort: int = 0) -> Awaitable[draft_pb2.Proposal]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[draft_pb2.Proposal] = loop.create_future()
        loop.call_later(self.costs.draft_rtt / 2, self._arrive, item, future)
        return future

    def _arrive(self, item: draft_pb2.ProposeItem, future: asyncio.Future[draft_pb2.Proposal]) -> None:
        self._queued.append((item, future))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._queued:
            await asyncio.sleep(0)
            batch, self._queued = self._queued, []
            self.batches.append((loop.time(), tuple(item.request_id for item, _ in batch)))
            seconds = self.costs.draft(len(batch), max(item.k for item, _ in batch))
            number = len(self.batches)
            await asyncio.sleep(seconds)
            timing = common_pb2.Timing(
                step=number,
                step_rows=len(batch),
                step_us=round(seconds * 1e6),
                total_us=round(seconds * 1e6),
            )
            answers = [(self._answer(item, timing), future) for item, future in batch]
            loop.call_later(self.costs.draft_rtt / 2, self._deliver, answers)
        self._task = None

    def _deliver(self, answers: list[tuple[draft_pb2.Proposal, asyncio.Future[draft_pb2.Proposal]]]) -> None:
        if self.costs.draft_rtt:
            self.estimate.note(self.costs.draft_rtt, 500)
        for answer, future in answers:
            if not future.done():
                future.set_result(answer)

    def _answer(self, item: draft_pb2.ProposeItem, timing: common_pb2.Timing) -> draft_pb2.Proposal:
        sequence = self.target.engine.sequences.get(item.request_id)
        generated = sequence.tokens[sequence.num_prompt :] if sequence is not None else []
        tokens: list[int] = []
        told: list[float] = []
        for j in range(1, item.k + 1):
            right = self.target.engine.decide(generated + tokens)
            chance = self.acceptance(item.request_id, len(generated), j)
            tokens.append(right if coin(item.request_id, item.position, j) < chance else (right + 1) % V)
            if self.confidence is not None:
                told.append(self.confidence(item.request_id, len(generated), j))
        self.answers.append((item.position, tuple(tokens)))
        return draft_pb2.Proposal(
            request_id=item.request_id,
            epoch=item.epoch,
            round=item.round,
            tokens=tokens,
            probabilities=told,
            timing=timing,
        )


def timed_pair(
    costs: PairCosts, acceptance: Confidence, confidence: Confidence | None = None
) -> tuple[Coordinator, TimedTarget, TimedDrafter]:
    """A coordinator on the running loop's clock, and its two services.

    Args:
        confidence: what the drafter tells; the truth when it is not given.
    """
    target = TimedTarget(costs)
    drafter = TimedDrafter(costs, target, acceptance, confidence or acceptance)
    backends = Backends(members_of(target), drafter, shared_tokenizer())
    now = asyncio.get_running_loop().time
    config = make_config(resend_seconds=60.0, hang_seconds=600.0)
    return Coordinator(config, "test", backends, 1000, lambda count: b"\7" * count, now), target, drafter
