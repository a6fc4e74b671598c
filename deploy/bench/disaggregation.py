"""Yardstick `disaggregation`: what three processes and gRPC cost against one process.

Both arms run the same rounds on the same models with the same threads: the untrained drafter is
asked in every round, so every round pays for the whole path.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial

import torch

from coordinator.client import Answer, AsyncClient
from coordinator.tokenizer import load_tokenizer
from deploy.asking import greedy_chat, speculative_arm
from deploy.bench.harness import BenchOptions, Outcome, interleave, paired_ratios, spread
from deploy.in_process import InProcess, in_process
from deploy.local import StackOptions, local_stack
from deploy.prompts import read_prompts, take
from deploy.up import UNTRAINED, stack_options
from draft_service.checkpoint import read_draft_config
from draft_service.loader import load_drafter
from protos import coordinator_pb2
from target_service.build import build
from target_service.config import TargetConfig

CONCURRENCY = 4
BAR = 0.90
_THREADS = 1
_SPLIT, _JOINT = "three processes", "one process"

Complete = Callable[[coordinator_pb2.GenerateRequest], Awaitable[Answer]]


async def tokens_per_second(complete: Complete, prompts: Sequence[str], max_tokens: int) -> float:
    """All prompts at once; every token of every answer, prefill included."""
    arm = speculative_arm("drafter")
    requests = [greedy_chat(prompt, max_tokens, arm) for prompt in prompts]
    for request in requests:
        request.ignore_eos = True  # both arms and all runs do the same work
    started = time.perf_counter()
    answers = await asyncio.gather(*(complete(request) for request in requests))
    seconds = time.perf_counter() - started
    return sum(len(answer.token_ids) for answer in answers) / seconds


async def measure(options: BenchOptions) -> Outcome:
    """Runs the yardstick; both arms stay loaded, one of them computes at a time."""
    num_cycles, max_tokens = (12, 64) if options.full else (6, 32)
    torch.set_num_threads(_THREADS)
    stack = stack_options(
        options.target, UNTRAINED, target_threads=_THREADS, draft_threads=_THREADS, coordinator_flags=()
    )
    prompts = [prompt.prompt for prompt in take(read_prompts(), CONCURRENCY)]
    runs = await _run(stack, prompts, options, (num_cycles, max_tokens))
    value = spread(paired_ratios(runs, _SPLIT, _JOINT)).median
    records = [{**run, "unit": "tokens/s", "threads_per_model": _THREADS} for run in runs]
    return Outcome(value, "ratio of tokens/s, median of pairs", BAR, value >= BAR, records)


async def _complete_in_process(system: InProcess, request: coordinator_pb2.GenerateRequest) -> Answer:
    generation = await system.coordinator.admit(request)
    answer = Answer()
    async for message in generation.attach().messages():
        answer.add(message)
    return answer


@contextlib.asynccontextmanager
async def _one_process(options: StackOptions) -> AsyncIterator[InProcess]:
    """The models of `local_stack(options)`, loaded into this process."""
    assert options.drafter is not None
    layers = read_draft_config(options.drafter).target_layer_ids
    config = TargetConfig.load(None, target=str(options.target), tapped_layers=layers, threads=_THREADS)
    built = await asyncio.to_thread(build, config)
    drafter = await asyncio.to_thread(load_drafter, options.drafter, options.target, (), "auto")
    tokenizer = load_tokenizer(built.tokenizer_files, built.description.tokenizer_hash)
    async with in_process(built, drafter, tokenizer) as system:
        yield system


async def _run(
    stack: StackOptions, prompts: Sequence[str], options: BenchOptions, size: tuple[int, int]
) -> list[dict[str, object]]:
    num_cycles, max_tokens = size
    async with (
        local_stack(stack, options.say) as running,
        AsyncClient(running.coordinator.address) as client,
        _one_process(stack) as system,
    ):
        arms = {
            _SPLIT: partial(tokens_per_second, client.complete, prompts, max_tokens),
            _JOINT: partial(tokens_per_second, partial(_complete_in_process, system), prompts, max_tokens),
        }
        for warm_up in arms.values():
            await warm_up()
        return await running.guard(interleave(arms, num_cycles, options.say))
