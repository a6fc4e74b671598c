"""Kept tails: what a draft has left is verified without asking again, if the text is what it was drafted
behind. Committed text cannot change by it, so what is watched is which proposals are sent."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coordinator.coordinator import SOURCES
from coordinator.ledger import Block
from coordinator.request import Request
from coordinator.session import Session
from coordinator.trace.record import RoundSource
from coordinator.tuned import TunedSteering
from coordinator.tuning import BlindProposals, Plan, Proposals, RoundView, SeenProposals, TailChoice
from protos import common_pb2
from protos.coordinator_pb2 import PROPOSAL_SOURCE_DRAFTER
from tests.coordinator_harness import complete, request
from tests.test_cohorts import Records
from tests.timed_pair import PairCosts, TimedDrafter, TimedTarget, run_jumping, timed_pair

K = 8
# The fifth row is dear: a draft is verified by pieces. Drafts are dear too, so a tail is welcome.
COSTS = PairCosts(lambda rows: 0.010 if rows <= 4 else 0.060, lambda batch, k: 0.020)


async def played(right: Callable[[int], bool]) -> tuple[Records, TimedTarget, TimedDrafter]:
    """One text of 300 tokens, of a drafter that is right at some places and sure at all of them."""
    coordinator, target, drafter = timed_pair(
        COSTS, lambda name, position, j: float(right(j)), lambda name, position, j: 0.95
    )
    records = Records()
    message = request(request_id="r", max_tokens=300, source=SOURCES["drafter"])
    with coordinator.feed.listening(records):
        answer, _, failure = await complete(coordinator, message)
    assert failure is None
    assert answer.token_ids == [i % 200 for i in range(300)]
    assert answer.finished.usage.verified_tokens <= answer.finished.usage.drafted_tokens
    return records, target, drafter


def was_drafted_behind(text: tuple[int, ...], proposals: tuple[int, ...], drafter: TimedDrafter) -> bool:
    """Whether some answer says: behind this very text, these proposals."""
    for position, tokens in drafter.answers:
        begun = len(text) - 1 - position
        if 0 <= begun <= len(tokens) - len(proposals):
            behind = text[position + 1 :] == tokens[:begun]
            if behind and tokens[begun : begun + len(proposals)] == proposals:
                return True
    return False


def check_proposals_belong_to_their_text(wrong_at: int) -> None:
    """One proposal of each draft is wrong, those behind it would be right again: they are of another text."""
    _, target, drafter = run_jumping(lambda: played(lambda j: j != wrong_at))
    assert len(target.verified) > 20
    for text, proposals in target.verified:
        assert not proposals or was_drafted_behind(text, proposals, drafter), (text[-3:], proposals)


def test_a_tail_is_verified_without_asking_the_drafter() -> None:
    records, target, drafter = run_jumping(lambda: played(lambda j: True))
    tails = [record for record in records if record.source is RoundSource.TAIL]
    assert len(tails) > 5
    assert all(record.parts.draft == 0.0 for record in tails)
    assert all(record.num_accepted == record.num_verified for record in tails)
    assert len(drafter.batches) < len(target.verified)
    assert all(was_drafted_behind(text, proposals, drafter) for text, proposals in target.verified)


@pytest.mark.parametrize("wrong_at", [4, 5])
def test_no_tail_behind_another_text(wrong_at: int) -> None:
    check_proposals_belong_to_their_text(wrong_at)


def steering(is_blind: bool, session: Session) -> TunedSteering:
    """On the running loop."""
    plan = Plan(True, PROPOSAL_SOURCE_DRAFTER, K, K + 1, is_blind=is_blind, is_tuned=True)
    mode = common_pb2.MODE_REJECTION if is_blind else common_pb2.MODE_GREEDY
    params = common_pb2.SamplingParams(mode=mode)
    asked = Request("r", tuple(session.tokens), 1, b"\7" * 16, params, (), plan)
    coordinator, _, _ = timed_pair(COSTS, lambda *_: 1.0)
    found = TunedSteering(plan, asked, session, coordinator.cohorts)
    found.choose(RoundView(100, (), K))
    return found


def after_a_round(proposals: Proposals, is_blind: bool) -> tuple[TunedSteering, Session]:
    """Two of five proposals stand; the token behind them is the third proposal."""
    session = Session([1], 1, 100)
    found = steering(is_blind, session)
    session.tokens += [11, 12, 13]
    found.note_block(RoundSource.DRAFTER, Block(PROPOSAL_SOURCE_DRAFTER, 5, 2, 2, 3), proposals, 13)
    return found, session


def test_a_tail_is_good_for_one_length_of_the_text() -> None:
    """A re-open, a Run or a lookup in between moves the text on."""

    async def work() -> None:
        proposals = SeenProposals((11, 12, 13, 14, 15), (0.9,) * 5)
        found, session = after_a_round(proposals, is_blind=False)
        assert found.choose(RoundView(100, (), 0)) == TailChoice((14, 15))
        found, session = after_a_round(proposals, is_blind=False)
        session.tokens.append(14)
        assert not isinstance(found.choose(RoundView(100, (), 0)), TailChoice)

    run_jumping(work)


def test_a_blind_round_keeps_no_tail() -> None:
    async def work() -> None:
        found, _ = after_a_round(BlindProposals((11, 12, 13, 14, 15), ()), is_blind=True)
        assert not isinstance(found.choose(RoundView(100, (), 0)), TailChoice)

    run_jumping(work)
