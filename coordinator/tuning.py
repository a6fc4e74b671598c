"""What a round does: pure choices. `k` and `v` are fixed here; a tuner may replace both functions.

Rejection sampling is exact only if nothing looks at the proposals of a round before they are
verified: not `v`, not the choice of their source. The types say so: a blind round has its `v` in the
choice that asks for proposals, and what comes back is `BlindProposals`, which carries no probability
and which `choose_verify` does not take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coordinator.trace.record import RoundSource
from protos.common_pb2 import TruncatedLaw
from protos.coordinator_pb2 import (
    PROPOSAL_SOURCE_AUTO,
    PROPOSAL_SOURCE_DRAFTER,
    PROPOSAL_SOURCE_LOOKUP,
    PROPOSAL_SOURCE_LOOKUP_THEN_DRAFTER,
    ProposalSource,
)

_USES_LOOKUP = frozenset({PROPOSAL_SOURCE_AUTO, PROPOSAL_SOURCE_LOOKUP, PROPOSAL_SOURCE_LOOKUP_THEN_DRAFTER})
_USES_DRAFTER = frozenset(
    {PROPOSAL_SOURCE_AUTO, PROPOSAL_SOURCE_DRAFTER, PROPOSAL_SOURCE_LOOKUP_THEN_DRAFTER}
)


@dataclass(frozen=True)
class Plan:
    """How a request wants to be speculated; fixed for its life.

    Args:
        speculates: False means plain decoding throughout.
        source: where proposals come from.
        num_draft_tokens: `k`; verify_block_size: `v`, rows a round verifies, the anchor included.
        is_blind: rejection mode: `v` and source are fixed before proposals are seen.
        is_tuned: `k`, `v` and source are chosen round by round, up to what is given here.
    """

    speculates: bool
    source: ProposalSource
    num_draft_tokens: int
    verify_block_size: int
    is_blind: bool = False
    is_tuned: bool = False

    @property
    def uses_lookup(self) -> bool:
        return self.speculates and self.source in _USES_LOOKUP and self.max_proposals > 0

    @property
    def uses_drafter(self) -> bool:
        return self.speculates and self.source in _USES_DRAFTER and self.max_proposals > 0

    @property
    def max_proposals(self) -> int:
        return min(self.num_draft_tokens, self.verify_block_size - 1)


@dataclass(frozen=True)
class RoundView:
    """What a choice may look at.

    Args:
        num_remaining: tokens the request may still get, >= 1.
        lookup: a lookup proposal of up to `max_proposals` tokens, or nothing.
        forced: the next tokens as the grammar forces them, a hint of the target's last verdict.
        max_drafter_proposals: what a connected drafter gives at most; 0 without one.
        lookup_length: of the suffix that was found again.
    """

    num_remaining: int
    lookup: tuple[int, ...]
    max_drafter_proposals: int
    forced: tuple[int, ...] = ()
    lookup_length: int = 0


@dataclass(frozen=True)
class SeenProposals:
    """Greedy and coupled: tokens, and the drafter's own probability of each (none from lookup)."""

    tokens: tuple[int, ...]
    probabilities: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False)
class BlindProposals:
    """Rejection: tokens with the law each was drawn from, passed on unopened."""

    tokens: tuple[int, ...]
    laws: tuple[TruncatedLaw, ...]

    def first(self, count: int) -> BlindProposals:
        return BlindProposals(self.tokens[:count], self.laws[:count])


Proposals = SeenProposals | BlindProposals


@dataclass(frozen=True)
class RunChoice:
    """The target decodes alone, up to `max_tokens`."""

    max_tokens: int


@dataclass(frozen=True)
class LookupChoice:
    """Verify what followed the same tokens before (a function of the committed tokens alone)."""

    proposals: tuple[int, ...]
    source: ClassVar = RoundSource.LOOKUP


@dataclass(frozen=True)
class ForcedChoice:
    """Verify what the grammar forces: certain to stand, so nothing else is worth asking."""

    proposals: tuple[int, ...]
    source: ClassVar = RoundSource.FORCED


@dataclass(frozen=True)
class TailChoice:
    """Verify the rest of a draft whose verified part was wholly accepted. Never in a blind round."""

    proposals: tuple[int, ...]
    source: ClassVar = RoundSource.TAIL


@dataclass(frozen=True)
class DraftChoice:
    """Ask the drafter for `k` proposals; in a blind round `num_verified` of them will be verified."""

    k: int
    num_verified: int | None = None


RoundChoice = RunChoice | LookupChoice | ForcedChoice | TailChoice | DraftChoice


def choose_draft(plan: Plan, view: RoundView) -> RoundChoice:
    """Where the proposals of the next round come from.

    A round with k proposals commits up to k + 1 tokens, so k is at most what remains less one.
    """
    k = min(plan.max_proposals, view.num_remaining - 1)
    if k > 0 and plan.speculates and view.forced:
        return ForcedChoice(view.forced[:k])
    if k > 0 and plan.uses_lookup and view.lookup:
        return LookupChoice(view.lookup[:k])
    if k > 0 and plan.uses_drafter and view.max_drafter_proposals > 0:
        k = min(k, view.max_drafter_proposals)
        return DraftChoice(k, k if plan.is_blind else None)
    return RunChoice(view.num_remaining)


def choose_verify(plan: Plan, num_remaining: int, proposals: SeenProposals) -> tuple[int, ...]:
    """The proposals that are verified: `v - 1` of them, and never more than the request has use for."""
    return proposals.tokens[: max(min(plan.verify_block_size, num_remaining) - 1, 0)]
