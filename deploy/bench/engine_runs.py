"""Decoding through the target's engine and through the library, both in this process, timed.

Ids of the prompts are arbitrary and no stop is obeyed: every run of every arm computes the same
number of rows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from deploy.demo_model import resolve_model
from target_service import fused, linear
from target_service.build import BuiltTarget, build
from target_service.commands import (
    Address,
    Event,
    Open,
    Refused,
    RequestKey,
    Run,
    SamplingParams,
    Verdict,
)
from target_service.config import TargetConfig
from target_service.engine import Engine

THREADS = 1
_COORDINATOR = "bench"
_KEY = bytes(16)


@dataclass(frozen=True)
class Job:
    """One request: ids of its prompt and how many tokens to decode."""

    prompt: tuple[int, ...]
    max_tokens: int


def make_job(number: int, prompt_length: int, max_tokens: int, vocab_size: int = 10_000) -> Job:
    """A prompt of its own, without a common prefix with others."""
    ids = tuple((31 * number + 7 * i + i * i) % vocab_size for i in range(prompt_length))
    return Job(ids, max_tokens)


def built_target(name: str, kernel: str) -> BuiltTarget:
    """The target as its service builds it, with a matrix kernel. Without prefix cache, so that runs
    repeat the same work; prefill in whole chunks, because nobody's latency is measured."""
    folder = resolve_model(name)
    config = TargetConfig.load(
        None,
        target=str(folder),
        linear_kernel=kernel,
        threads=THREADS,
        num_pages=512,
        prefix_cache=False,
        prefill_seconds=0.0,
    )
    return build(config)


def library_model(name: str, kernel: str) -> Any:
    """The library's model in float32; with another kernel than `torch` its matrices are packed one by
    one and everything else is as it was."""
    from transformers import AutoModelForCausalLM

    folder: Path = resolve_model(name)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.eval().requires_grad_(False)
    if kernel != linear.TORCH:
        fused.pack_matrices(model, kernel)
    return model


def decode(engine: Engine, jobs: Sequence[Job]) -> float:
    """Runs all jobs at once by plain decoding; returns the useful tokens in a second."""
    started = time.perf_counter()
    by_name = {str(number): job for number, job in enumerate(jobs)}
    for name, job in by_name.items():
        params = SamplingParams(max_tokens=job.max_tokens, ignore_eos=True)
        _take(engine.apply(Open(_address(name, 0), job.prompt, len(job.prompt), _KEY, params)))
    num_tokens = 0
    while engine.has_work():
        for verdict in _take(engine.step()):
            num_tokens += len(verdict.tokens)
            name = verdict.address.key.request_id
            if verdict.address.round == 0 and verdict.finish_reason is None:
                run = Run(_address(name, 1), verdict.committed_length, by_name[name].max_tokens)
                _take(engine.apply(run))
    seconds = time.perf_counter() - started
    engine.drop_coordinator(_COORDINATOR)
    assert num_tokens == sum(job.max_tokens for job in jobs)
    return num_tokens / seconds


def _address(name: str, number: int) -> Address:
    return Address(RequestKey(_COORDINATOR, name), 1, number)


def _take(events: Sequence[Event]) -> list[Verdict]:
    assert not [event for event in events if isinstance(event, Refused)], events
    return [event for event in events if isinstance(event, Verdict)]


@torch.inference_mode()
def generate(model: Any, jobs: Sequence[Job]) -> float:
    """The library's greedy `generate` over left-padded prompts until the longest job is done; returns
    the useful tokens in a second."""
    longest = max(len(job.prompt) for job in jobs)
    ids = torch.zeros(len(jobs), longest, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, job in enumerate(jobs):
        ids[row, longest - len(job.prompt) :] = torch.tensor(job.prompt)
        mask[row, longest - len(job.prompt) :] = 1
    count = max(job.max_tokens for job in jobs)
    started = time.perf_counter()
    output = model.generate(
        ids.to(model.device),
        attention_mask=mask.to(model.device),
        max_new_tokens=count,
        min_new_tokens=count,
        do_sample=False,
        pad_token_id=0,
    )
    seconds = time.perf_counter() - started
    assert output.shape[1] == longest + count
    return sum(job.max_tokens for job in jobs) / seconds
