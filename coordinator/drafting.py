"""Asking the drafter for one round. Whatever goes wrong, the round goes on without it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from coordinator.ports import DraftPort
from coordinator.question import Author, Question
from coordinator.tuning import BlindProposals, Plan, Proposals, SeenProposals
from protos import draft_pb2
from protos.common_pb2 import MODE_REJECTION, TruncatedLaw
from protos.errors import Unavailable

log = logging.getLogger("dlite.coordinator")


@dataclass(frozen=True)
class Answer:
    """A proposal that can be verified, and who made it."""

    proposal: draft_pb2.Proposal
    author: Author


async def ask(
    drafter: DraftPort,
    item: draft_pb2.ProposeItem,
    timeout_seconds: float,
    vocab_size: int,
    cohort: int = 0,
) -> Answer | None:
    """The drafter's answer, or None when it is late, gone, refused or of no use."""
    try:
        async with asyncio.timeout(timeout_seconds):
            asked = drafter.propose(item, cohort)
            proposal = await asked
    except TimeoutError:
        drafter.note_failure(asked)
        return None
    except Unavailable:
        return None
    problem = find_problem(item, proposal, vocab_size)
    if problem:
        log.warning("round %d of %s is not drafted: %s", item.round, item.request_id, problem)
        drafter.note_failure(asked)
        return None
    if isinstance(asked, Question):
        return Answer(proposal, asked.author)
    # A drafter in this process is nobody but itself.
    return Answer(proposal, Author("", drafter.describe.fingerprint if drafter.describe else ""))


def drafted(proposal: draft_pb2.Proposal, num_verified: int | None) -> Proposals:
    """A drafter's answer as the round may see it.

    Args:
        num_verified: of a blind round, fixed before; None where `choose_verify` looks at the answer.
    """
    tokens = tuple(proposal.tokens)
    if num_verified is None:
        return SeenProposals(tokens, tuple(proposal.probabilities))
    return BlindProposals(tokens, tuple(proposal.law)).first(num_verified)


def looked_up(tokens: tuple[int, ...], plan: Plan) -> Proposals:
    """Lookup proposals; they are certain, so in rejection mode q is one-hot."""
    if not plan.is_blind:
        return SeenProposals(tokens)
    return BlindProposals(tokens, tuple(TruncatedLaw(token_ids=[t], probabilities=[1.0]) for t in tokens))


def find_problem(item: draft_pb2.ProposeItem, proposal: draft_pb2.Proposal, vocab_size: int) -> str:
    """Why a proposal cannot be verified; empty when it can."""
    if proposal.HasField("refusal"):
        return f"refused for {proposal.refusal.field}: {proposal.refusal.message}"
    if not 0 < len(proposal.tokens) <= item.k:
        return f"{len(proposal.tokens)} tokens where 1 to {item.k} were asked for"
    if item.mode == MODE_REJECTION and len(proposal.law) != len(proposal.tokens):
        return f"{len(proposal.law)} laws for {len(proposal.tokens)} tokens"
    if max(proposal.tokens) >= vocab_size:
        return f"token {max(proposal.tokens)} outside the target's vocabulary of {vocab_size}"
    return ""
