"""Services with set costs: what they sleep, how often they are right, and how both are written."""

from __future__ import annotations

import pytest
import torch

from coordinator.client import Answer
from deploy.bench.fakes import VOCAB_SIZE, FakeDrafter, FakeModel, FeatureShape, fake_target
from deploy.bench.rounds import fixed_rounds
from deploy.bench.set_costs import (
    Acceptance,
    CostTable,
    DraftCosts,
    Phase,
    VerifyCosts,
    format_acceptance,
    format_draft_costs,
    format_verify_costs,
    parse_acceptance,
    parse_draft_costs,
    parse_verify_costs,
    survival,
    uniform,
)
from deploy.in_process import in_process
from draft_service.proposal import DraftItem, DraftMode
from protos import coordinator_pb2
from protos.errors import InvalidRequest
from target_service.packing import PackedStep, Span

SHAPE = FeatureShape(num_layers=2, width=4)


def test_costs_of_a_step_by_rows_and_context() -> None:
    costs = parse_verify_costs("1:0.02,8:0.03+1e-6")
    assert costs == VerifyCosts(CostTable((1, 8), (0.02, 0.03)), 1e-6)
    assert costs(1, 0) == 0.02
    assert costs(2, 1000) == pytest.approx(0.031)
    assert costs(16, 0) == pytest.approx(0.06), "beyond the table a step costs in proportion"
    assert parse_verify_costs(format_verify_costs(costs)) == costs
    assert parse_verify_costs("1:0") == VerifyCosts()


def test_costs_of_a_draft_by_batch_and_longest_draft() -> None:
    costs = parse_draft_costs("3=1:0.004,8:0.006;7=1:0.008")
    assert [costs(1, 1), costs(1, 3), costs(4, 3), costs(1, 4), costs(2, 9)] == pytest.approx(
        [0.004, 0.004, 0.006, 0.008, 0.016]
    )
    assert parse_draft_costs(format_draft_costs(costs)) == costs
    assert parse_draft_costs("1:0.005")(1, 7) == 0.005


def test_acceptance_by_class_and_position() -> None:
    acceptance = parse_acceptance("0.8,0.5;chat=0.9x3;code=0.9x2|200:0.1x2")
    assert acceptance.num_proposals == 3
    assert acceptance.at("whatever", 5) == (0.8, 0.5)
    assert acceptance.at("chat/7", 5) == (0.9,) * 3
    assert acceptance.at("code/7", 199) == (0.9, 0.9)
    assert acceptance.at("code/7", 200) == (0.1, 0.1)
    assert parse_acceptance(format_acceptance(acceptance)) == acceptance


@pytest.mark.parametrize("text", ["", "x", "0.5;chat=a", "chat=0.5"])
def test_what_is_no_acceptance_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_acceptance(text)


def test_the_model_sleeps_by_its_table() -> None:
    slept: list[float] = []
    model = FakeModel(VerifyCosts(CostTable((1, 8), (0.02, 0.03)), 1e-3), SHAPE, slept.append)
    token_ids = torch.tensor([3, VOCAB_SIZE - 1])
    span = Span(0, 2, (slice(0, 2),), None, True, (0,), 10)
    output = model.forward(PackedStep(token_ids, token_ids, token_ids, (span,), torch.tensor([0, 1])))
    assert slept == [pytest.approx(0.04)]
    assert output.logits.argmax(-1).tolist() == [4, 0]


def item(request_id: str, position: int, k: int) -> DraftItem:
    return DraftItem(request_id, (position % VOCAB_SIZE,), None, position, k, DraftMode.GREEDY, b"", 0.0)


def accepted(drafter: FakeDrafter, request_id: str, k: int, num_rounds: int) -> list[int]:
    """Walks a counting text as the rounds do; accept lengths."""
    position, counts = 1, []
    for _ in range(num_rounds):
        result = drafter.propose([item(request_id, position, k)])[0]
        right = [token == (position + j) % VOCAB_SIZE for j, token in enumerate(result.tokens, 1)]
        counts.append([*right, False].index(False))
        position += counts[-1] + 1
    return counts


def test_the_drafter_is_right_as_often_as_set() -> None:
    drafter = FakeDrafter(DraftCosts(), uniform(0.7, 5), SHAPE)
    counts = accepted(drafter, "r", 5, 4000)
    assert sum(counts) / len(counts) == pytest.approx(sum(survival((0.7,) * 5)), abs=0.08)


def test_what_the_drafter_knows_is_a_matter_of_the_text_alone() -> None:
    """Arms with another k meet the same coins."""
    drafter = FakeDrafter(DraftCosts(), uniform(0.5, 7), SHAPE)
    knows = {}
    for k in (1, 3, 7):
        for position in range(0, 60):
            tokens = drafter.propose([item("r", position, k)])[0].tokens
            for j, token in enumerate(tokens, 1):
                right = token == (position + j) % VOCAB_SIZE
                assert knows.setdefault(position + j, right) == right
    assert len(set(knows.values())) == 2


def test_acceptance_switches_in_mid_run() -> None:
    phases = Acceptance({"": (Phase(0, (1.0,) * 4), Phase(100, (0.0,) * 4))})
    counts = accepted(FakeDrafter(DraftCosts(), phases, SHAPE), "r", 4, 60)
    assert counts[:20] == [4] * 20
    assert counts[20:] == [0] * 40


def test_a_batch_sleeps_once_for_its_longest_draft() -> None:
    slept: list[float] = []
    costs = parse_draft_costs("3=1:0.004,8:0.006;7=1:0.008,8:0.010")
    drafter = FakeDrafter(costs, uniform(1.0, 7), SHAPE, slept.append)
    results = drafter.propose([item("a", 5, 2), item("b", 5, 7)])
    assert slept == [0.010]
    assert [result.forward_us for result in results] == [10_000, 10_000]


async def test_the_system_over_fakes_counts() -> None:
    built = fake_target(VerifyCosts(), SHAPE)
    async with in_process(built, FakeDrafter(DraftCosts(), uniform(0.5, 7), SHAPE)) as system:
        request = coordinator_pb2.GenerateRequest(
            token_ids=[1, 2], max_tokens=200, temperature=0.0, speculation=fixed_rounds(7)
        )
        answer = Answer()
        generation = await system.coordinator.admit(request)
        async for message in generation.attach().messages():
            answer.add(message)
    assert list(answer.token_ids) == [(3 + i) % VOCAB_SIZE for i in range(200)]
    assert 1.5 < answer.finished.ledger.accept_length < 2.5
