"""Who decides about the rounds of one text: a fixed plan, or the tuner (see `tuned`)."""

from __future__ import annotations

from typing import Protocol

from coordinator.ledger import Block
from coordinator.spent import Company
from coordinator.trace.record import RoundSource, Share
from coordinator.tuning import (
    ForcedChoice,
    Plan,
    Proposals,
    RoundChoice,
    RoundView,
    RunChoice,
    SeenProposals,
    choose_draft,
    choose_verify,
)
from protos import common_pb2

# Fewer forced tokens than these do not pay for the pause between a Run and a verification.
_MIN_FORCED_TO_HOLD = 2
_NOBODY = Company()
_UNPLANNED = Share()


class Steering(Protocol):
    """Asked on the event loop at the turns of a round, in the order of its methods."""

    @property
    def plan(self) -> Plan:
        """What the request wishes."""
        ...

    @property
    def share(self) -> Share:
        """What was planned for the round that was chosen last."""
        ...

    async def enter(self, view: RoundView) -> None:
        """Before the first round: whoever comes with this one is there when the first choice is made."""
        ...

    def choose(self, view: RoundView) -> RoundChoice:
        """At the boundary of two rounds: what the next one does."""
        ...

    def should_hold(self, view: RoundView) -> bool:
        """During a Run, after each of its tokens: whether to end it for something better."""
        ...

    async def gather(self) -> Company:
        """Before the drafter is asked: waits for the others of the cohort, if there are any."""
        ...

    async def size(self, num_remaining: int, proposals: SeenProposals) -> tuple[int, ...]:
        """Which of a drafter's proposals are verified; not asked in a blind round."""
        ...

    async def meet(self) -> None:
        """Before a blind round's proposals are verified: waits for those that came with them."""
        ...

    def note_draft(self, timing: common_pb2.Timing, k: int) -> None:
        """The drafter has answered a question for `k` proposals."""
        ...

    def note_verdict(self, timing: common_pb2.Timing, num_tokens: int) -> None:
        """The target has decided so many tokens that stand."""
        ...

    def note_block(self, source: RoundSource, block: Block, proposals: Proposals, anchor: int | None) -> None:
        """A round with proposals has ended.

        Args:
            anchor: the last committed token; None when the text has ended.
        """
        ...

    def leave(self) -> None:
        """No further round is steered by this one. Harmless when repeated."""
        ...


class FixedSteering:
    """Every round does what the plan says."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.share = _UNPLANNED

    async def enter(self, view: RoundView) -> None:
        """Nobody is decided for together."""

    def choose(self, view: RoundView) -> RoundChoice:
        return choose_draft(self.plan, view)

    def should_hold(self, view: RoundView) -> bool:
        return is_worth_a_hold(choose_draft(self.plan, view))

    async def gather(self) -> Company:
        return _NOBODY

    async def size(self, num_remaining: int, proposals: SeenProposals) -> tuple[int, ...]:
        return choose_verify(self.plan, num_remaining, proposals)

    async def meet(self) -> None:
        """Nobody was left with."""

    def note_draft(self, timing: common_pb2.Timing, k: int) -> None:
        """Nothing is learned."""

    def note_verdict(self, timing: common_pb2.Timing, num_tokens: int) -> None:
        """Nothing is learned."""

    def note_block(self, source: RoundSource, block: Block, proposals: Proposals, anchor: int | None) -> None:
        """Nothing is learned."""

    def leave(self) -> None:
        """Nobody was joined."""


def is_worth_a_hold(choice: RoundChoice) -> bool:
    """Whether a Run is ended for this."""
    if isinstance(choice, ForcedChoice):
        return len(choice.proposals) >= _MIN_FORCED_TO_HOLD
    return not isinstance(choice, RunChoice)
