"""Yardstick `spot-checks`: the tuner and the model of a cycle on a real target.

The target computes; the drafter replays what the target has said before and is right as often as is set
(`ReplayDrafter`), so no model's quality is in the way. Two checks of what the yardsticks on services with
set costs say:

* `tuner`: tuned rounds against every fixed v and `Run`, at concurrency 1 and 4, as `tuner` has it;
* `model`: one request at fixed v; T_V, T_D, T_net and T_S as the records of these rounds have them, learned
  by the tuner's own tables, against the time of a round and tokens/s as the client saw them, as `link-model`
  and `replay` have it.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from coordinator.client import AsyncClient
from deploy.bench.harness import BenchOptions, Outcome, Say, abba
from deploy.bench.rounds import rate_while_all, take
from deploy.bench.spot_model import ACCEPTANCE, SIZES, K, Recorded, model_runs
from deploy.bench.tuner import BAR, RUN, RUN_BAR, TUNED
from deploy.local import StackOptions, local_stack
from deploy.prompts import read_prompts
from deploy.prompts import take as take_prompts
from deploy.up import NO_DRAFTER, stack_options
from protos import coordinator_pb2

# Of a batch of the replay drafter: it computes nothing.
DRAFT_MS = 3.0
CONCURRENCIES = (1, 4)
# For the model, whose acceptance is the one that was set: a text's own luck is no error of it.
NUM_MODEL_TEXTS = 10
ARMS = (RUN, *(f"v = {v}" for v in SIZES), TUNED)
MODEL_BAR, RATE_BAR = 0.15, 0.10


async def measure(
    options: BenchOptions,
    num_tokens: int = 96,
    num_cycles: int = 4,
    num_texts: int = NUM_MODEL_TEXTS,
    prompt_ids: Sequence[tuple[int, ...]] = (),
) -> Outcome:
    """Runs both checks; the value is the worst of tuned over the best fixed v.

    Args:
        num_texts: that the model is checked on, in half as many cycles; with `prompt_ids` all of them.
        prompt_ids: of a target without a tokenizer; else the demo's prompts.
    """
    num_tokens = 3 * num_tokens if options.full else num_tokens
    stack = stack_options(options.target, NO_DRAFTER, target_threads=1, draft_threads=1, coordinator_flags=())
    texts = await record(stack, num_tokens, max(num_texts, *CONCURRENCIES), prompt_ids, options.say)
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "recorded.jsonl"
        file.write_text("".join(text.line() + "\n" for text in texts))
        async with (
            local_stack(replayed(stack, file), options.say) as running,
            AsyncClient(running.coordinator.address) as client,
        ):
            address, few = running.coordinator.address, max(num_cycles // 2, 1)
            runs += await running.guard(model_runs(client, address, texts, few))
            for concurrency in CONCURRENCIES:
                found = tuner_runs(client, texts[:concurrency], num_cycles, options.say)
                runs += await running.guard(found)
    return judge(runs)


async def record(
    stack: StackOptions, num_tokens: int, num_texts: int, prompt_ids: Sequence[tuple[int, ...]], say: Say
) -> list[Recorded]:
    """What the target says alone to so many prompts."""
    found = []
    async with local_stack(stack, say) as running, AsyncClient(running.coordinator.address) as client:
        for number, ids in enumerate(prompt_ids or await _tokenized(client, num_texts)):
            text = Recorded(f"spot-{number}", ids, (0,) * num_tokens)
            answer = await running.guard(client.complete(text.request(RUN)))
            found.append(replace(text, answer_ids=tuple(answer.token_ids)))
    return found


async def _tokenized(client: AsyncClient, num_texts: int) -> list[tuple[int, ...]]:
    found = []
    for prompt in take_prompts(read_prompts(), num_texts):
        message = coordinator_pb2.ChatMessage(role="user", content=prompt.prompt)
        ids = await client.tokenize(coordinator_pb2.TokenizeRequest(messages=[message]))
        found.append(tuple(ids))
    return found


def replayed(stack: StackOptions, file: Path) -> StackOptions:
    """The same target with the replay drafter."""
    acceptance = ",".join([str(ACCEPTANCE)] * K)
    flags = ("--replay", str(file), "--acceptance", acceptance, "--compute-ms", str(DRAFT_MS))
    return replace(stack, draft_replay=True, draft_flags=flags)


async def tuner_runs(
    client: AsyncClient, texts: Sequence[Recorded], num_cycles: int, say: Say
) -> list[dict[str, Any]]:
    """Tokens/s of these texts at once, by arm."""
    cell, runs = f"{len(texts)} requests", []
    for arm in abba(ARMS, num_cycles):
        found = await asyncio.gather(*(take(client, text.request(arm)) for text in texts))
        value = rate_while_all([text.arrivals for text in found])
        num_undrafted = sum(text.ledger.num_undrafted_rounds for text in found)
        say(f"{cell}: {arm} {value:.1f} tokens/s")
        runs.append({"arm": f"{cell}: {arm}", "value": value, "cell": cell, "choice": arm})
        # A text that leaves its recording cannot be drafted any more: a near-tie was decided otherwise.
        runs.append({"arm": f"{cell}: {arm}, rounds without a draft", "value": num_undrafted})
    return runs


def judge(runs: list[dict[str, Any]]) -> Outcome:
    """Both checks: tuned against fixed, and the model against what was seen."""
    records: list[Mapping[str, Any]] = []
    for cell in dict.fromkeys(run["cell"] for run in runs if "cell" in run):
        values = {
            arm: statistics.median(
                run["value"] for run in runs if run.get("cell") == cell and run["choice"] == arm
            )
            for arm in ARMS
        }
        tuned = values.pop(TUNED)
        records += [
            {"arm": "tuned / best fixed", "value": tuned / max(values.values()), "of": cell},
            {"arm": "tuned / Run", "value": tuned / values[RUN], "of": cell},
        ]

    def values_of(arm: str) -> list[float]:
        return [float(run["value"]) for run in (*runs, *records) if run["arm"] == arm]

    worst = {
        "measured / modelled round": MODEL_BAR,
        "measured / modelled tokens/s": RATE_BAR,
    }
    over_best = min(values_of("tuned / best fixed"))
    passed = (
        over_best >= BAR
        and min(values_of("tuned / Run")) >= RUN_BAR
        and all(abs(value - 1.0) <= bar for arm, bar in worst.items() for value in values_of(arm))
    )
    return Outcome(over_best, "worst of tuned / best fixed v", BAR, passed, [*runs, *records])
