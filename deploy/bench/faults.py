"""Yardstick `faults`: whatever fails in mid-round, no request does, and every text is as it would have been.

Three fleets of real processes, started one after the other: one target and one drafter with two
coordinators; the same with few pages; two targets and two drafters. Each row plays on one of them (see
`fault_frame` for what is checked). A target in float64 has no near-ties.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from coordinator.client import AsyncClient
from deploy.bench.equality import encode_prompts
from deploy.bench.fault_fleet import Fleet, FleetOptions, fleet
from deploy.bench.fault_frame import Fault, Frame, Settings
from deploy.bench.fault_load import Judge, texts_of
from deploy.bench.fault_rows import FEW_PAGES, PAIR, REPLICAS
from deploy.bench.harness import BenchOptions, Outcome, Say
from deploy.demo_model import resolve_model
from deploy.local import StackOptions
from deploy.prompts import read_prompts, take
from deploy.shipped import named_drafter
from deploy.supervision import RestartPolicy
from deploy.up import stack_options
from protos.errors import InvalidRequest

BAR = 1.0
NUM_PROMPTS, PROMPT_TOKENS, MAX_TOKENS = 4, 48, 64
# As `dlite up` does it, but for never giving up: a fleet is struck again and again.
POLICY = RestartPolicy(healthy=0.0)
# A lost target takes its time to start on a machine with other work; a client that does not read is cut soon.
ENVIRONMENT = {
    "DLITE_COORDINATOR_TARGET_LOSS_SECONDS": "300",
    "DLITE_COORDINATOR_CLIENT_STALL_SECONDS": "3",
    "DLITE_COORDINATOR_MAX_QUEUED_DELTAS": "8",
}
# `--full` has 1,000 cancels and 10,500 malformed messages.
SHORT = Settings(num_cancels=300, num_malformed=1500)
CROWD = 20
PAGE_SIZE = 16


@dataclass(frozen=True)
class Trial:
    """What all rows have in common.

    Args:
        services: how the services are started.
        prompts: token ids; None: the project's own prompts through the target's tokenizer.
        max_tokens: of every text.
        judged_by: model folder that excuses near-ties; None where there are none (float64).
    """

    services: StackOptions
    prompts: Sequence[Sequence[int]] | None = None
    max_tokens: int = MAX_TOKENS
    judged_by: Path | None = None
    settings: Settings = field(default_factory=Settings)
    policy: RestartPolicy = POLICY
    environment: Mapping[str, str] | None = None

    @property
    def fleet(self) -> FleetOptions:
        environment = {**ENVIRONMENT, **(self.environment or {})}
        return FleetOptions(self.services, self.policy, coordinator_environment=environment)


async def play(
    trial: Trial, options: FleetOptions, faults: Sequence[Fault], say: Say
) -> list[dict[str, Any]]:
    """Plays rows on a fleet of their own; their records."""
    records = []
    async with fleet(options, say) as started, AsyncClient(started.coordinators[-1]) as client:
        judge = Judge(texts_of(await _prompts(trial, client), trial.max_tokens), trial.judged_by)
        await started.guard(judge.learn(client))
        frame = Frame(started, judge, client, trial.settings)
        for fault in faults:
            record = await _one(started, frame, fault)
            records.append(record)
            say(f"{fault.name}: {'as it should be' if record['pass'] else json.dumps(record)}")
    return records


async def _one(started: Fleet, frame: Frame, fault: Fault) -> dict[str, Any]:
    record = await started.guard(frame.play(fault))
    return {**record, "says": fault.says}


async def _prompts(trial: Trial, client: AsyncClient) -> Sequence[Sequence[int]]:
    if trial.prompts is not None:
        return trial.prompts
    try:
        encoded = await encode_prompts(client, take(read_prompts(), NUM_PROMPTS))
        return [ids[:PROMPT_TOKENS] for ids in encoded]
    except InvalidRequest:  # a target without a tokenizer
        vocab_size = (await client.server_info()).target.vocab_size
        rng = random.Random(0)
        return [[rng.randrange(vocab_size) for _ in range(PROMPT_TOKENS)] for _ in range(NUM_PROMPTS)]


async def play_pair(trial: Trial, say: Say, faults: Sequence[Fault] = PAIR) -> list[dict[str, Any]]:
    """One target, one drafter, two coordinators."""
    return await play(trial, trial.fleet, faults, say)


async def play_few_pages(trial: Trial, say: Say) -> list[dict[str, Any]]:
    """A crowd of texts in a pool of a tenth of what they need together."""
    longest = PROMPT_TOKENS if trial.prompts is None else max(map(len, trial.prompts))
    pages = -(-(longest + trial.max_tokens) // PAGE_SIZE) + 1
    pool = ("--num-pages", str(max(CROWD * pages // 10, pages + 1)))
    services = replace(trial.services, target_flags=(*trial.services.target_flags, *pool))
    crowded = replace(trial, services=services, settings=replace(trial.settings, num_workers=CROWD))
    return await play(crowded, crowded.fleet, FEW_PAGES, say)


async def play_replicas(trial: Trial, say: Say, faults: Sequence[Fault] = REPLICAS) -> list[dict[str, Any]]:
    """Two targets and two drafters behind one coordinator."""
    options = replace(trial.fleet, num_targets=2, num_drafters=2, num_coordinators=1)
    settled = replace(trial, settings=replace(trial.settings, num_workers=6))
    return await play(settled, options, faults, say)


async def measure(options: BenchOptions) -> Outcome:
    """Plays every row: the share of those in which all is as it should be."""
    target = resolve_model(options.target)
    drafter = named_drafter(options.drafter, target, options.say)
    services = stack_options(options.target, drafter, target_threads=1, draft_threads=1, coordinator_flags=())
    trial = Trial(services, judged_by=target, settings=Settings() if options.full else SHORT)
    records = [
        *await play_pair(trial, options.say),
        *await play_few_pages(trial, options.say),
        *await play_replicas(trial, options.say),
    ]
    value = sum(record["pass"] for record in records) / len(records)
    details = {"target": target.name}
    return Outcome(value, "of rows: no request failed, no text differs", BAR, value == BAR, records, details)
