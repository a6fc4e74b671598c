"""A round under way: where its time goes, what it does; and the record it leaves."""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.ledger import Block, RoundTimes
from coordinator.question import Author
from coordinator.trace.record import RoundParts, RoundRecord, RoundSource, Share, Step
from protos import common_pb2


@dataclass(frozen=True)
class Place:
    """Where in its text a round is.

    Args:
        class_name: of traffic; the source is added.
        position: generated tokens before it; context: committed tokens before it.
    """

    request_id: str
    class_name: str
    round: int
    position: int
    context: int


@dataclass(frozen=True)
class Company:
    """With whom a round went: a number that they share (0: nobody planned it), and how many they were."""

    cohort: int = 0
    size: int = 0


@dataclass(eq=False)
class Spent:
    """One round so far. `started` is a stamp of the rounds' clock; times are seconds.

    Args:
        draft_seconds, verify_seconds: inside the services, waiting there included.
        draft_waited_seconds, target_waited_seconds: from the question to the answer.
    """

    started: float
    place: Place
    source: RoundSource = RoundSource.RUN
    share: Share = field(default_factory=Share)
    company: Company = field(default_factory=Company)
    author: Author = field(default_factory=Author)
    target: str = ""
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    queue_draft_seconds: float = 0.0
    queue_target_seconds: float = 0.0
    draft_waited_seconds: float = 0.0
    target_waited_seconds: float = 0.0
    draft_step: Step = field(default_factory=Step)
    target_step: Step = field(default_factory=Step)
    num_tokens: int = 0

    def note_draft(self, timing: common_pb2.Timing, waited_seconds: float, k: int) -> None:
        """Takes the drafter's answer to a question for `k` proposals."""
        self.draft_seconds = timing.total_us / 1e6
        self.queue_draft_seconds = timing.queue_us / 1e6
        self.draft_waited_seconds += waited_seconds
        self.draft_step = Step(
            rows=timing.step_rows, seconds=timing.step_us / 1e6, context=k, number=timing.step
        )

    def note_verdict(self, timing: common_pb2.Timing) -> None:
        """Takes a verdict; a run has many."""
        self.verify_seconds += timing.total_us / 1e6
        self.queue_target_seconds += timing.queue_us / 1e6
        rows = 0 if timing.step_prefill_rows else timing.step_rows
        self.target_step = Step(
            rows=rows, seconds=timing.step_us / 1e6, context=timing.step_context, number=timing.step
        )

    def times(self, now: float) -> RoundTimes:
        """The times of a round that ends now, for the ledger."""
        waited = self.draft_waited_seconds + self.target_waited_seconds
        return RoundTimes(self.draft_seconds, self.verify_seconds, waited, now - self.started)

    def parts(self, now: float) -> RoundParts:
        """Where the time of a round that ends now went."""
        draft_network = max(self.draft_waited_seconds - self.draft_seconds, 0.0)
        target_network = max(self.target_waited_seconds - self.verify_seconds, 0.0)
        waited = self.draft_waited_seconds + self.target_waited_seconds
        return RoundParts(
            draft=self.draft_seconds - self.queue_draft_seconds,
            verify=self.verify_seconds - self.queue_target_seconds,
            draft_network=draft_network,
            target_network=target_network,
            queue=self.queue_draft_seconds + self.queue_target_seconds,
            scheduling=max(now - self.started - waited, 0.0),
        )

    def record(self, now: float, block: Block | None, is_cut: bool) -> RoundRecord:
        """Of the round, which ends now; `block` when it had proposals."""
        place = self.place
        return RoundRecord(
            ended=now,
            request_id=place.request_id,
            class_name=f"{place.class_name}/{self.source}",
            source=self.source,
            round=place.round,
            num_drafted=block.num_drafted if block else 0,
            num_verified=block.num_verified if block else 0,
            num_accepted=block.num_accepted if block else 0,
            num_tokens=self.num_tokens,
            is_cut=is_cut,
            position=place.position,
            context=place.context,
            cohort=self.company.cohort,
            cohort_size=self.company.size,
            parts=self.parts(now),
            target_step=self.target_step,
            draft_step=self.draft_step,
            plan=self.share,
            drafter=self.author.fingerprint,
            target=self.target,
        )
