"""Running sums over rounds and texts. Cheap enough to be always on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from coordinator.trace.record import RoundRecord, RoundSource
from protos import coordinator_pb2
from protos.common_pb2 import FINISH_REASON_ERROR


@dataclass(eq=False)
class SourceSums:
    """Sums over the rounds of one source; times in seconds."""

    num_rounds: int = 0
    num_tokens: int = 0
    num_drafted: int = 0
    num_verified: int = 0
    num_accepted: int = 0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    target_network_seconds: float = 0.0
    draft_network_seconds: float = 0.0
    queue_seconds: float = 0.0
    scheduling_seconds: float = 0.0
    by_cohorts: Counter[int] = field(default_factory=Counter)

    def note(self, record: RoundRecord) -> None:
        parts = record.parts
        self.num_rounds += 1
        self.num_tokens += record.num_tokens
        self.num_drafted += record.num_drafted
        self.num_verified += record.num_verified
        self.num_accepted += record.num_accepted
        self.draft_seconds += parts.draft
        self.verify_seconds += parts.verify
        self.target_network_seconds += parts.target_network
        self.draft_network_seconds += parts.draft_network
        self.queue_seconds += parts.queue
        self.scheduling_seconds += parts.scheduling
        if record.plan.num_cohorts:
            self.by_cohorts[record.plan.num_cohorts] += 1

    def to_message(self, source: RoundSource) -> coordinator_pb2.RoundSums:
        most = max(self.by_cohorts, default=0)
        return coordinator_pb2.RoundSums(
            source=source.value,
            num_rounds=self.num_rounds,
            num_tokens=self.num_tokens,
            num_drafted=self.num_drafted,
            num_verified=self.num_verified,
            num_accepted=self.num_accepted,
            draft_seconds=self.draft_seconds,
            verify_seconds=self.verify_seconds,
            target_network_seconds=self.target_network_seconds,
            draft_network_seconds=self.draft_network_seconds,
            queue_seconds=self.queue_seconds,
            scheduling_seconds=self.scheduling_seconds,
            num_rounds_by_cohorts=[self.by_cohorts[number] for number in range(1, most + 1)],
        )


@dataclass(eq=False)
class DraftSums:
    """Sums over the rounds of all drafters with one fingerprint.

    `reached[j - 1]` counts the rounds that verified proposal `j` with all before it accepted, and
    `accepted[j - 1]` those in which it was accepted too: their quotient does not depend on `v`.
    """

    num_rounds: int = 0
    num_proposed: int = 0
    num_verified: int = 0
    num_accepted: int = 0
    num_tokens: int = 0
    reached: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def note(self, record: RoundRecord) -> None:
        self.num_rounds += 1
        self.num_proposed += record.num_drafted
        self.num_verified += record.num_verified
        self.num_accepted += record.num_accepted
        self.num_tokens += record.num_tokens
        if record.is_cut:
            # Nobody knows what would have become of the rest.
            return
        missing = record.num_verified - len(self.reached)
        if missing > 0:
            self.reached.extend([0] * missing)
            self.accepted.extend([0] * missing)
        for index in range(record.num_accepted):
            self.reached[index] += 1
            self.accepted[index] += 1
        if record.num_accepted < record.num_verified:
            self.reached[record.num_accepted] += 1

    def to_message(self, fingerprint: str) -> coordinator_pb2.DraftSums:
        return coordinator_pb2.DraftSums(
            fingerprint=fingerprint,
            num_rounds=self.num_rounds,
            num_proposed=self.num_proposed,
            num_verified=self.num_verified,
            num_accepted=self.num_accepted,
            num_tokens=self.num_tokens,
            reached_per_position=self.reached,
            accepted_per_position=self.accepted,
        )


@dataclass(eq=False)
class TextSums:
    """Sums over texts that have ended."""

    num_texts: int = 0
    num_failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0

    def note(self, finished: coordinator_pb2.Finished) -> None:
        self.num_texts += 1
        self.num_failed += finished.finish_reason == FINISH_REASON_ERROR
        self.prompt_tokens += finished.usage.prompt_tokens
        self.cached_tokens += finished.usage.cached_tokens
