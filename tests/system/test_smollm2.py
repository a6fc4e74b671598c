"""The real model through three processes: speculation changes no token, up to near-ties."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coordinator.client import AsyncClient
from deploy.asking import speculative_arm
from deploy.bench.equality import Case, Suite, encode_prompts, run_suite
from deploy.bench.reference import Reference
from deploy.demo_model import DEMO_MODEL, resolve_model
from deploy.local import local_stack
from deploy.prompts import read_prompts, take
from deploy.shipped import shipped_drafter
from deploy.up import UNTRAINED, stack_options

PROMPTS = Path(__file__).parent.parent / "prompts.jsonl"
NUM_PROMPTS = 20
MAX_TOKENS = 64
CONCURRENCY = 8
SOURCE = "lookup_then_drafter"
CASES = [
    *(Case(speculative_arm(SOURCE, v), 0.0, CONCURRENCY) for v in (1, 5, 8)),
    Case(speculative_arm(SOURCE, 5), 0.8, CONCURRENCY),
]


async def records_of(num_prompts: int, max_tokens: int, cases: list[Case]) -> list[dict[str, Any]]:
    """Runs the cases on three processes; prints every near-tie."""
    options = stack_options(DEMO_MODEL, UNTRAINED, target_threads=1, draft_threads=1, coordinator_flags=())
    reference = Reference(options.target, num_threads=1)
    async with local_stack(options, print) as stack, AsyncClient(stack.coordinator.address) as client:
        prompts = await encode_prompts(client, take(read_prompts(PROMPTS), num_prompts))
        assert len(prompts) == num_prompts
        suite = Suite(client, reference, prompts, max_tokens)
        records = await stack.guard(run_suite(suite, cases, print, CONCURRENCY))
    print(json.dumps(records, indent=1))
    assert len(records) == 1 + len(cases)
    return records


@pytest.fixture(autouse=True)
def _kernel_of_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """The matrix kernel that a user's target chooses, not the one the suite pins."""
    monkeypatch.setenv("DLITE_TARGET_LINEAR_KERNEL", "auto")


async def test_four_prompts_of_smollm2() -> None:
    records = await records_of(4, 16, [CASES[1]])
    assert all(record["tokens"] >= 4 for record in records)
    assert [record for record in records if not record["passed"]] == []


@pytest.mark.prove
@pytest.mark.timeout(2400)
async def test_speculation_changes_no_token_of_smollm2() -> None:
    records = await records_of(NUM_PROMPTS, MAX_TOKENS, CASES)
    assert all(record["tokens"] > NUM_PROMPTS for record in records)
    assert [record for record in records if not record["passed"]] == []


def test_the_shipped_drafter_is_for_the_demo_model_as_it_is_made_here() -> None:
    found = shipped_drafter(resolve_model(DEMO_MODEL))
    assert found.folder is not None, found.reason
