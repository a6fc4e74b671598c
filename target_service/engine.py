"""The engine: commands in, events out, one step at a time. One thread owns it.

    apply(command)   fencing, then a round starts; nothing is computed
    step()           plan -> pack -> forward -> settle

Commands and steps never overlap, so `Close` takes effect when the running step has ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Protocol

import torch

from target_service.block_pool import BlockPool
from target_service.commands import Address, Command, Event, Preempted, Step, Verdict
from target_service.deciding import decide_step, note_prompt_rows
from target_service.grammars import Grammars
from target_service.limits import EngineLimits
from target_service.packing import Extension, PackedStep, pack
from target_service.page_sharing import PageSharing
from target_service.prefill_budget import PrefillBudget
from target_service.requests import Requests
from target_service.scheduler import Budget, Plan, Work, plan
from target_service.sequence import Sequence, SequenceState
from target_service.settling import advance


@dataclass(frozen=True, eq=False)
class StepOutput:
    """Of the R deciding rows: logits [R, V] and pivot features [R, m, D]."""

    logits: torch.Tensor
    features: torch.Tensor


class Model(Protocol):
    """What the engine needs of a model; the tests' table target is another one."""

    @property
    def device(self) -> torch.device: ...

    @property
    def vocab_size(self) -> int: ...

    def forward(self, step: PackedStep) -> StepOutput: ...

    def copy_page(self, source: int, destination: int) -> None: ...


class Engine:
    """Owns every request's state.

    Args:
        model: computes steps.
        limits: sizes of pool and step.
        clock: seconds, monotonic.
        grammars: compiles the grammars of requests; without them they are refused.
    """

    def __init__(
        self,
        model: Model,
        limits: EngineLimits,
        clock: Callable[[], float] = time.monotonic,
        grammars: Grammars | None = None,
    ) -> None:
        self.limits = limits
        self.pool = BlockPool(limits.num_pages, limits.page_size)
        self.sharing = PageSharing(self.pool, limits, model.copy_page)
        self.requests = Requests(self.sharing, limits, model.vocab_size, clock, grammars)
        self.num_steps = 0
        self.num_rows = 0
        self._prefill = PrefillBudget(limits.prefill_seconds, limits.page_size, limits.prefill_rows)
        self._model = model
        self._clock = clock

    def __repr__(self) -> str:
        return f"Engine({len(self.requests)} requests, {self.pool!r}, {self.num_steps} steps)"

    @property
    def model(self) -> Model:
        return self._model

    def apply(self, command: Command) -> list[Event]:
        """Takes one command between two steps; returns what can be answered at once."""
        return self.requests.apply(command)

    def drop_coordinator(self, coordinator_id: str) -> None:
        """Frees all requests of a coordinator whose stream has ended."""
        self.requests.drop_coordinator(coordinator_id)

    def has_work(self) -> bool:
        return any(s.state is SequenceState.WAITING for s in self.requests.all())

    def queued_rows(self) -> int:
        """Rows still to compute for the rounds that have come in."""
        waiting = [s for s in self.requests.all() if s.state is SequenceState.WAITING]
        return sum(s.num_pending + len(s.proposals) for s in waiting)

    @torch.inference_mode()
    def step(self) -> list[Event]:
        """Computes one step; returns its events, all verdicts before any features."""
        started = self._clock()
        events = self.requests.take_grammars()
        self._find_prefixes()
        budget = Budget(
            self.pool.num_available, self.limits.page_size, self._prefill.rows, self.pool.references
        )
        step_plan = plan(self.requests.all(), budget)
        events += self._evict(step_plan)
        if not step_plan.work:
            return events
        extensions = [self._extend(work, started) for work in step_plan.work]
        output = self._model.forward(pack(extensions, self.limits.page_size, self._model.device))
        forwarded = self._clock()
        self._note_step(step_plan, extensions, started, forwarded - started)
        num_logits = [extension.num_decisions for extension in extensions]
        return events + self._settle(step_plan, num_logits, output, forwarded)

    def _note_step(
        self, step_plan: Plan, extensions: SequenceOf[Extension], started: float, seconds: float
    ) -> None:
        rows = [len(extension.token_ids) for extension in extensions]
        works = zip(step_plan.work, rows, strict=True)
        prefill = sum(count for work, count in works if work.sequence.num_pending > 1)
        self.num_steps += 1
        self.num_rows += sum(rows)
        context = sum(extension.kv_length for extension in extensions)
        step = Step(self.num_steps, sum(rows), prefill, context, started)
        for work in step_plan.work:
            assert work.sequence.active is not None
            work.sequence.active.forward_seconds += seconds
            work.sequence.active.step = step
        self._prefill.note(prefill, sum(rows), seconds)

    def _find_prefixes(self) -> None:
        """Looks up sequences that have nothing in the KV, each time until they are computed."""
        for sequence in sorted(self.requests.all(), key=lambda s: s.arrival):
            is_new = sequence.state is SequenceState.WAITING and not sequence.pages
            if is_new and not sequence.wants_prompt_logprobs:
                self.sharing.acquire(sequence)

    def _evict(self, step_plan: Plan) -> list[Event]:
        events: list[Event] = []
        for sequence in step_plan.evicted:
            sequence.lost_tokens += sequence.kv_length
            self.sharing.release(sequence)
            last = sequence.last_round if sequence.active is None else sequence.active.number
            events.append(Preempted(Address(sequence.key, sequence.epoch, last)))
        return events

    def _extend(self, work: Work, started: float) -> Extension:
        sequence = work.sequence
        assert sequence.active is not None
        if sequence.active.started is None:
            sequence.active.started = started
        sequence.pages += self.pool.allocate(work.new_pages)
        proposals = sequence.proposals if work.decides else ()
        num_committed = work.num_rows - len(proposals)
        start = sequence.kv_length
        num_decisions = 1 + len(proposals) if work.decides else 0
        if sequence.wants_prompt_logprobs:
            num_decisions = work.num_rows
        return Extension(
            token_ids=(*sequence.token_ids[start : start + num_committed], *proposals),
            kv_length=start,
            pages=tuple(sequence.pages),
            num_decisions=num_decisions,
        )

    def _settle(
        self, step_plan: Plan, num_logits: SequenceOf[int], output: StepOutput, forwarded: float
    ) -> list[Event]:
        rows = _decision_rows(step_plan, num_logits, output)
        deciding = [work.sequence for work in step_plan.work if work.decides]
        outcomes = iter(decide_step(deciding, rows.logits, self.limits.eos_ids))
        now = self._clock()
        events: list[Event] = []
        first = 0
        for work in step_plan.work:
            sequence = work.sequence
            assert sequence.active is not None
            if not work.decides:
                sequence.kv_length += work.num_rows
                self.sharing.publish(sequence)
                continue
            sequence.active.sample_seconds += now - forwarded
            last = first + 1 + len(sequence.proposals)
            events += advance(sequence, next(outcomes), rows.features[first:last], now)
            self.sharing.publish(sequence)
            self._crop(sequence)
            first = last
        return [event for event in events if isinstance(event, Verdict)] + [
            event for event in events if not isinstance(event, Verdict)
        ]

    def _crop(self, sequence: Sequence) -> None:
        """Frees whole pages beyond what stands: rejected rows, or everything of a finished text."""
        finished = sequence.finish_reason is not None
        self.sharing.crop(sequence, 0 if finished else sequence.kv_length)


def _decision_rows(step_plan: Plan, num_logits: SequenceOf[int], output: StepOutput) -> StepOutput:
    """The rows that decide; those of prompts whose log-probabilities are wanted are noted instead.

    Args:
        num_logits: of each work's rows in `output`, its last ones.
    """
    rows: list[int] = []
    first = 0
    for work, count in zip(step_plan.work, num_logits, strict=True):
        sequence, end = work.sequence, first + count
        if sequence.wants_prompt_logprobs:
            note_prompt_rows(sequence, output.logits[first:end])
        if work.decides:
            rows += range(end - 1 - len(sequence.proposals), end)
        first = end
    if len(rows) == first:
        return output
    return StepOutput(output.logits[rows], output.features[rows])
