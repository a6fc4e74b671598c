"""Yardstick `equality`: speculation and the library's own decoding against our plain decoding."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from coordinator.client import Answer, AsyncClient
from deploy.asking import Arm, plain_arm, speculative_arm
from deploy.bench.comparison import Comparison, compare, is_passed
from deploy.bench.harness import BenchOptions, Outcome, Say
from deploy.bench.reference import Reference
from deploy.local import local_stack
from deploy.prompts import Prompt, read_prompts, take
from deploy.up import UNTRAINED, default_threads, stack_options
from protos import coordinator_pb2

_TEMPERATURE = 0.8
_SOURCE = "lookup_then_drafter"


@dataclass(frozen=True)
class Case:
    """One way to decode: temperature 0 is greedy, else coupled with a seed for each prompt."""

    arm: Arm
    temperature: float
    concurrency: int

    @property
    def name(self) -> str:
        return f"{mode_of(self.temperature)} {self.arm.name}, concurrency {self.concurrency}"


@dataclass(frozen=True)
class Decoded:
    """Ids after a prompt, and the key that its noise came from."""

    token_ids: tuple[int, ...]
    key: bytes


def mode_of(temperature: float) -> str:
    return "coupled" if temperature > 0 else "greedy"


def default_cases() -> list[Case]:
    """Greedy at every block size and concurrency, coupled at two block sizes."""
    greedy = [Case(speculative_arm(_SOURCE, v), 0.0, c) for v in (1, 2, 5, 8) for c in (1, 8)]
    return [*greedy, *(Case(speculative_arm(_SOURCE, v), _TEMPERATURE, 8) for v in (5, 8))]


class Suite:
    """The prompts of a run and how they are decoded through one coordinator.

    Args:
        prompts: token ids of each prompt.
        max_tokens: generated for each.
    """

    def __init__(
        self, client: AsyncClient, reference: Reference, prompts: Sequence[Sequence[int]], max_tokens: int
    ) -> None:
        self._client = client
        self._reference = reference
        self._prompts = prompts
        self._max_tokens = max_tokens

    async def decode(self, case: Case, number: int, prefix: Sequence[int] = ()) -> Decoded:
        """Decodes prompt `number` after a prefix of its answer.

        Noise belongs to absolute positions, so what follows a prefix does not depend on where the
        request began.
        """
        request = coordinator_pb2.GenerateRequest(
            token_ids=[*self._prompts[number], *prefix],
            temperature=case.temperature,
            max_tokens=self._max_tokens - len(prefix),
            seed=number,
            speculation=case.arm.speculation,
        )
        answer: Answer = await self._client.complete(request)
        return Decoded(tuple(answer.token_ids), answer.sampling_key)

    async def decode_all(self, case: Case) -> list[Decoded]:
        """Every prompt, `case.concurrency` at a time."""
        jobs = [partial(self.decode, case, number) for number in range(len(self._prompts))]
        return await bounded(case.concurrency, jobs)

    async def check(self, case: Case, plain: Sequence[Decoded]) -> list[Comparison]:
        """Compares a case with plain decoding, prompt by prompt."""
        decoded = await self.decode_all(case)
        return [await self._check_one(case, n, plain[n], decoded[n]) for n in range(len(plain))]

    async def _check_one(self, case: Case, number: int, plain: Decoded, got: Decoded) -> Comparison:
        expected = plain.token_ids

        async def continue_from(n: int) -> Sequence[int]:
            return (await self.decode(case, number, expected[:n])).token_ids

        def gap_at(n: int) -> float:
            prefix = [*self._prompts[number], *expected[:n]]
            if case.temperature > 0:
                return self._reference.coupled_gap(prefix, plain.key, case.temperature)
            return self._reference.greedy_gap(prefix)

        return await compare(expected, got.token_ids, continue_from, gap_at)

    async def check_reference(self, plain: Sequence[Decoded]) -> list[Comparison]:
        """Compares the library's greedy decoding with ours."""
        return [await self._check_reference_one(n, plain[n].token_ids) for n in range(len(plain))]

    async def _check_reference_one(self, number: int, expected: Sequence[int]) -> Comparison:
        prompt = list(self._prompts[number])

        async def continue_from(n: int) -> Sequence[int]:
            return self._reference.generate([*prompt, *expected[:n]], self._max_tokens - n)

        got = await continue_from(0)
        return await compare(
            expected, got, continue_from, lambda n: self._reference.greedy_gap([*prompt, *expected[:n]])
        )


async def bounded(concurrency: int, jobs: Sequence[Callable[[], Awaitable[Decoded]]]) -> list[Decoded]:
    """Runs jobs, at most `concurrency` at a time; results in order."""
    gate = asyncio.Semaphore(concurrency)

    async def run(job: Callable[[], Awaitable[Decoded]]) -> Decoded:
        async with gate:
            return await job()

    return list(await asyncio.gather(*(run(job) for job in jobs)))


async def encode_prompts(client: AsyncClient, prompts: Sequence[Prompt]) -> list[list[int]]:
    """Token ids of each prompt as a chat message."""
    requests = [
        coordinator_pb2.TokenizeRequest(
            messages=[coordinator_pb2.ChatMessage(role="user", content=prompt.prompt)]
        )
        for prompt in prompts
    ]
    return [await client.tokenize(request) for request in requests]


async def run_suite(
    suite: Suite, cases: Sequence[Case], say: Say, plain_concurrency: int = 1
) -> list[dict[str, Any]]:
    """All cases and the library's decoding, each against plain decoding of its temperature."""
    records = []
    plain = {
        temperature: await suite.decode_all(Case(plain_arm(), temperature, plain_concurrency))
        for temperature in {0.0, *(case.temperature for case in cases)}
    }
    say("plain decoding done")
    records.append(record("greedy transformers generate", await suite.check_reference(plain[0.0])))
    say(f"{records[-1]['arm']}: {summary(records[-1])}")
    for case in cases:
        records.append(record(case.name, await suite.check(case, plain[case.temperature])))
        say(f"{case.name}: {summary(records[-1])}")
    return records


def record(name: str, comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """One run of the result; `value` is the share of prompts without an unexcused difference."""
    return {
        "arm": name,
        "value": sum(not c.mismatch for c in comparisons) / len(comparisons),
        "passed": is_passed(comparisons),
        "tokens": sum(c.num_tokens for c in comparisons),
        "near_ties": [{"prompt": n, **asdict(t)} for n, c in enumerate(comparisons) for t in c.near_ties],
        "mismatches": [{"prompt": n, "what": c.mismatch} for n, c in enumerate(comparisons) if c.mismatch],
    }


def summary(one: dict[str, Any]) -> str:
    return f"{one['tokens']} tokens, {len(one['near_ties'])} near-ties, {len(one['mismatches'])} mismatches"


async def measure(options: BenchOptions) -> Outcome:
    """Runs the yardstick on a stack of its own."""
    num_prompts, max_tokens = (10, 64) if options.full else (8, 24)
    threads = default_threads()
    stack = stack_options(
        options.target, UNTRAINED, target_threads=threads, draft_threads=1, coordinator_flags=()
    )
    reference = Reference(stack.target, threads)
    async with local_stack(stack, options.say) as running, AsyncClient(running.coordinator.address) as client:
        prompts = await encode_prompts(client, take(read_prompts(), num_prompts))
        suite = Suite(client, reference, prompts, max_tokens)
        records = await running.guard(run_suite(suite, default_cases(), options.say))
    worst = min(one["value"] for one in records)
    return Outcome(worst * 100, "% equal", 100.0, all(one["passed"] for one in records), records)
