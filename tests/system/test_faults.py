"""Every row of the Faults paragraph on real processes (CLUSTER): `dlite bench faults`, smaller."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deploy.bench.fault_frame import Fault, Settings
from deploy.bench.fault_rows import PAIR, REPLICAS
from deploy.bench.faults import Trial, play_few_pages, play_pair, play_replicas
from deploy.demo_model import DEMO_MODEL, resolve_model
from deploy.local import StackOptions
from deploy.soak_run import SoakOptions, quick, run_soak
from deploy.supervision import RestartPolicy
from deploy.up import UNTRAINED, stack_options
from tests.fakes import GOLDEN
from tests.fault_world import DRAFT, PROMPTS

POLICY = RestartPolicy(first_pause=0.1, healthy=0.0, probe_every=0.5, probe_timeout=2.0, max_silent=3)
FAULTS = {fault.name: fault for fault in PAIR}
TINY = StackOptions(
    target=GOLDEN / "target_qwen3",
    drafter=DRAFT,
    target_flags=("--tapped-layers", "0,1,4,5", "--dtype", "float64"),
)
# What a lost message costs its text, and how long a drafter may take.
QUICK = {"DLITE_COORDINATOR_RESEND_SECONDS": "0.5", "DLITE_COORDINATOR_DRAFT_TIMEOUT_SECONDS": "1"}
SETTINGS = Settings(num_malformed=600)


def tiny(max_tokens: int = 100) -> Trial:
    return Trial(TINY, PROMPTS, max_tokens, settings=SETTINGS, policy=POLICY, environment=QUICK)


def rows(*names: str) -> list[Fault]:
    return [FAULTS[name] for name in names]


def all_pass(records: list[dict[str, Any]]) -> None:
    print(json.dumps(records, indent=1))
    assert [record for record in records if not record["pass"]] == []


async def test_a_killed_drafter_and_a_drained_coordinator_cost_no_request() -> None:
    records = await play_pair(tiny(), print, rows("kill-drafter", "drain-coordinator"))
    all_pass(records)
    assert records[0]["undrafted"], "rounds went on without the drafter"


@pytest.mark.prove
@pytest.mark.timeout(1200)
async def test_every_row_with_one_of_each() -> None:
    records = await play_pair(tiny(), print)
    all_pass(records)
    assert {record["fault"] for record in records} == set(FAULTS)


@pytest.mark.prove
@pytest.mark.timeout(600)
async def test_a_tenth_of_the_pages_that_are_needed() -> None:
    all_pass(await play_few_pages(tiny(), print))


@pytest.mark.prove
@pytest.mark.timeout(900)
async def test_one_of_two_targets_or_drafters_killed_or_stopped() -> None:
    records = await play_replicas(tiny(), print)
    all_pass(records)
    assert len(records) == len(REPLICAS)
    for record in records:
        assert record["other_seconds"] < record["restart_seconds"], "the other one served meanwhile"


@pytest.mark.prove
@pytest.mark.timeout(1200)
async def test_smollm2_under_faults() -> None:
    services = stack_options(DEMO_MODEL, UNTRAINED, target_threads=1, draft_threads=1, coordinator_flags=())
    trial = Trial(
        services, max_tokens=40, judged_by=resolve_model(DEMO_MODEL), policy=POLICY, environment=QUICK
    )
    chosen = rows("kill-target", "stop-drafter", "kill-coordinator", "drop", "duplicate")
    all_pass(await play_pair(trial, print, chosen))


@pytest.mark.prove
@pytest.mark.timeout(600)
async def test_half_a_minute_of_soaking() -> None:
    """Too short to judge memory; requests, pages and streams are judged."""
    options = quick(SoakOptions(TINY, 20.0, policy=POLICY), 0.5)
    record = await run_soak(options, print)
    print(json.dumps({name: value for name, value in record.items() if name != "moments"}))
    assert record["pass"]
    assert record["faults"], "nothing was killed"
    assert record["requests"]["ok"] > 5
    assert record["requests"].get("failed", 0) == 0
    assert not record["memory_judged"]
