"""A small world for the tuner: set costs and set acceptance, cycles by the model of the design.

Times are the model's with noise on every step; tokens are drawn. What the tuner sees is what a
coordinator could measure, never the truth.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from coordinator.tuner.choose import evaluate
from coordinator.tuner.costs import CostPriors
from coordinator.tuner.cycle import CycleCosts, Shape, cycle_of
from coordinator.tuner.survival import Verified, survival_of
from coordinator.tuner.tuner import Decision, TunedRequest, Tuner

K = 7


@dataclass(frozen=True)
class World:
    """The truth.

    Args:
        verify, draft: seconds by rows, and by batch and k.
        rtt_seconds: of both links together; overhead_seconds: T_S.
        noise: standard deviation of a step, as a share.
    """

    verify: Callable[[int], float]
    draft: Callable[[int, int], float]
    rtt_seconds: float = 0.0
    overhead_seconds: float = 0.001
    noise: float = 0.05

    def costs(self, num_requests: int, k: int = K) -> CycleCosts:
        return CycleCosts(
            (0.0, *(self.verify(rows) for rows in range(1, num_requests * (k + 1) + 1))),
            tuple(
                tuple(self.draft(batch, n) if batch and n else 0.0 for n in range(k + 1))
                for batch in range(num_requests + 1)
            ),
            self.rtt_seconds,
            self.overhead_seconds,
        )

    def fixed_rate(self, size: int, num_requests: int, acceptance: float) -> float:
        """Tokens per second of all requests at one `v`, with the best P."""
        survivals = [survival_of((acceptance,) * K)] * num_requests
        costs, sizes = self.costs(num_requests), [size] * num_requests
        most = 1 if size == 1 else min(3, num_requests)
        return max(evaluate(sizes, number, survivals, costs) for number in range(1, most + 1))


def staircase(rows: int) -> float:
    """A step at every eight rows, as kernels with tiles have it."""
    return 0.010 + 0.004 * ((rows - 1) // 8) + 0.0001 * rows


def draft_seconds(batch: int, k: int) -> float:
    return 0.002 + 0.0002 * batch + 0.0003 * k


def expected_tokens(size: int, acceptance: float) -> float:
    """Tokens of a round of `size` rows."""
    return 1.0 + sum(survival_of((acceptance,) * (size - 1)))


@dataclass
class Phase:
    """A stretch of a run."""

    num_requests: int
    acceptance: float
    num_tokens: int


@dataclass
class Stretch:
    """What a phase came to: expected tokens and true times, so that luck does not count."""

    num_tokens: float
    seconds: float
    last: Decision

    @property
    def rate(self) -> float:
        return self.num_tokens / self.seconds


class Simulation:
    """Runs phases one after the other with one tuner."""

    def __init__(self, world: World, seed: int = 0, tuner: Tuner | None = None) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.tuner = tuner or Tuner(CostPriors(), random.Random(seed + 1).random)

    def run(self, phase: Phase) -> Stretch:
        requests = [TunedRequest(f"r{i}", "chat", K) for i in range(phase.num_requests)]
        num_tokens, seconds = 0.0, 0.0
        while True:
            decision = self.tuner.decide(requests)
            while self.tuner.think():
                pass
            tokens, spent = self._cycle(decision, requests, phase.acceptance)
            num_tokens += tokens
            seconds += spent
            if num_tokens >= phase.num_tokens:
                return Stretch(num_tokens, seconds, decision)

    def _noisy(self, seconds: float) -> float:
        return seconds * max(self.random.gauss(1.0, self.world.noise), 0.5)

    def _cycle(
        self, decision: Decision, requests: list[TunedRequest], acceptance: float
    ) -> tuple[float, float]:
        drafts = [size - 1 for size in decision.block_sizes if size > 1]
        runs = len(requests) - len(drafts)
        shape = Shape(runs, len(drafts), sum(drafts), max(drafts, default=0))
        cohorts = max(min(decision.plan.num_cohorts, len(drafts)), 1)
        true = cycle_of(shape, cohorts, self.world.costs(len(requests)))
        self._measure(shape, cohorts)
        tokens, expected = 0, 0.0
        for request, size, probe in zip(requests, decision.block_sizes, decision.is_probe, strict=True):
            new = self._steps(true.num_run_steps) if size == 1 else 1
            if size > 1:
                accepted = 0
                while accepted < size - 1 and self.random.random() < acceptance:
                    accepted += 1
                self.tuner.note_block(request, Verified(size - 1, accepted), probe)
                new += accepted
            self.tuner.survival.note_tokens(request.request_id, request.class_name, new)
            tokens += new
            expected += true.num_run_steps if size == 1 else expected_tokens(size, acceptance)
        self.tuner.note_cycle(decision, shape, tokens, self._noisy(true.seconds))
        return expected, true.seconds

    def _steps(self, mean: float) -> int:
        return int(mean) + (self.random.random() < mean - int(mean))

    def _measure(self, shape: Shape, cohorts: int) -> None:
        costs, world = self.tuner.costs, self.world
        rows = shape.num_runs
        if shape.num_speculating:
            rows += -(-(shape.num_speculating + shape.num_proposals) // cohorts)
            batch = -(-shape.num_speculating // cohorts)
            costs.draft.note(
                batch, self._noisy(world.draft(batch, shape.num_draft_tokens)), shape.num_draft_tokens
            )
            costs.target_link.note(self._noisy(world.rtt_seconds / 2), 2000)
            costs.draft_link.note(self._noisy(world.rtt_seconds / 2), 4000)
        costs.verify.note(rows, self._noisy(world.verify(rows)))
