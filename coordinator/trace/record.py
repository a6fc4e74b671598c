"""One round of one text, as traces tell it. No prompt, text or token id is in it.

All times are seconds; instants are of the coordinator's monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class RoundSource(StrEnum):
    """Where the proposals of a round came from."""

    RUN = "run"  # none were wanted: the target decoded alone
    UNDRAFTED = "undrafted"  # the drafter was asked in vain, so the target decoded alone
    DRAFTER = "drafter"
    LOOKUP = "lookup"
    TAIL = "tail"  # the rest of a draft whose verified part was wholly accepted
    FORCED = "forced"  # by the grammar


@dataclass(frozen=True)
class Share:
    """What was planned for a round.

    Args:
        block_size: `v` as planned; 0 when nothing planned it (a fixed `k` and `v`).
        num_requests: that were planned together; num_cohorts: P.
        tokens_per_second: predicted for all of them together; 0: unknown.
        is_probe: the round looked at what the plan does not show.
    """

    block_size: int = 0
    num_requests: int = 0
    num_cohorts: int = 0
    tokens_per_second: float = 0.0
    is_probe: bool = False


@dataclass(frozen=True)
class Step:
    """The target's step, or the drafter's batch, that a round was part of: what the tuner learns costs from.

    Args:
        rows: of the step, or items of the batch; 0: not told, or it computed a prompt as well.
        seconds: of the whole step; 0: not told.
        context: committed tokens that its rows read, or proposals that were asked for.
        number: which step; rounds that shared it have the same. 0: not told.
    """

    rows: int = 0
    seconds: float = 0.0
    context: int = 0
    number: int = 0


@dataclass(frozen=True)
class RoundParts:
    """Where the wall time of a round went, in seconds; they add up to it.

    Args:
        draft: T_D, verify: T_V, both without waiting there (of a run: of all its steps).
        draft_network, target_network: T_net of each link.
        queue: waiting in the services. scheduling: T_S, in the coordinator.
    """

    draft: float = 0.0
    verify: float = 0.0
    draft_network: float = 0.0
    target_network: float = 0.0
    queue: float = 0.0
    scheduling: float = 0.0

    @property
    def wall(self) -> float:
        return (
            self.draft + self.verify + self.draft_network + self.target_network + self.queue + self.scheduling
        )


@dataclass(frozen=True)
class RoundRecord:
    """A round that has ended.

    Args:
        ended: when. request_id: of the text; choices of one request have names of their own.
        class_name: of traffic and source, as the tuner counts acceptance.
        num_drafted: k, proposals made; num_verified: v - 1, rows without the anchor's.
        num_accepted: A; num_tokens: committed, and standing.
        is_cut: the text ended inside the block.
        position: generated tokens before the round; context: committed tokens before it.
        cohort: a number that rounds which went together share; 0: none.
        drafter: fingerprint of the drafter that made its proposals; empty when none did.
        target: address of the one that verified. Numbers of steps and cohorts are each target's own.
    """

    ended: float
    request_id: str
    class_name: str
    source: RoundSource
    round: int
    num_drafted: int
    num_verified: int
    num_accepted: int
    num_tokens: int
    is_cut: bool
    position: int
    context: int
    cohort: int
    cohort_size: int
    parts: RoundParts
    target_step: Step
    draft_step: Step
    plan: Share
    drafter: str = ""
    target: str = ""

    @property
    def block_size(self) -> int:
        """`v`: rows of the target, the anchor's included."""
        return self.num_verified + 1

    @property
    def is_speculative(self) -> bool:
        """Whether it had proposals."""
        return self.source not in (RoundSource.RUN, RoundSource.UNDRAFTED)
