"""Traces of a world whose costs and acceptance are known."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from coordinator.trace.format import Header
from coordinator.trace.reader import Trace
from coordinator.trace.record import RoundParts, RoundRecord, RoundSource, Share, Step

NAME = "chat/drafter"


@dataclass(frozen=True)
class World:
    """Requests that all draft `k` and verify `v` rows, in cohorts of all of them.

    Args:
        acceptance: a_j at an instant; verify: T_V by rows, in seconds.
    """

    acceptance: Callable[[float], float] = lambda seconds: 0.8
    verify: Callable[[int], float] = lambda rows: 0.010 + 0.0005 * rows
    draft_seconds: float = 0.002
    network_seconds: float = 0.001
    num_requests: int = 2
    num_drafted: int = 7
    block_size: int = 3

    def trace(self, num_cycles: int, seed: int = 0) -> Trace:
        """That many cycles, one after the other."""
        draw = random.Random(seed).random
        now, records = 100.0, []
        lengths = [50] * self.num_requests
        for cycle in range(1, num_cycles + 1):
            rows = self.num_requests * self.block_size
            parts = RoundParts(
                draft=self.draft_seconds,
                verify=self.verify(rows),
                draft_network=self.network_seconds,
                target_network=self.network_seconds,
            )
            now += parts.wall
            for request in range(self.num_requests):
                accepted = 0
                while accepted < self.block_size - 1 and draw() < self.acceptance(now - 100.0):
                    accepted += 1
                records.append(self._record(now, request, cycle, accepted, lengths[request], parts, rows))
                lengths[request] += accepted + 1
        return Trace(Header(0.0, 0.0), tuple(records))

    def _record(
        self,
        now: float,
        request: int,
        cycle: int,
        accepted: int,
        context: int,
        parts: RoundParts,
        rows: int,
    ) -> RoundRecord:
        return RoundRecord(
            ended=now,
            request_id=f"r{request}",
            class_name=NAME,
            source=RoundSource.DRAFTER,
            round=cycle,
            num_drafted=self.num_drafted,
            num_verified=self.block_size - 1,
            num_accepted=accepted,
            num_tokens=accepted + 1,
            is_cut=False,
            position=context - 50,
            context=context,
            cohort=cycle,
            cohort_size=self.num_requests,
            parts=parts,
            target_step=Step(rows, self.verify(rows), context, cycle),
            draft_step=Step(self.num_requests, self.draft_seconds, self.num_drafted, cycle),
            plan=Share(self.block_size, self.num_requests, 1, 0.0, False),
        )
