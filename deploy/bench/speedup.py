"""Yardstick `speedup`: the demo's stack with a trained drafter and the tuner against plain decoding with
the fastest one-row kernel and thread layout.

1. One-row steps of every kernel and thread count, in this process: the fastest kernel.
2. Stacks in several thread layouts decode pilot prompts plainly and tuned, in turn: the fastest of each.
3. Rounds of fixed size on the chosen stack: T_V(v), T_D, T_net and the break-even tau.
4. Every prompt of every kind, A-B-B-A; texts are compared.

Tokens are counted after the first one of an answer: prefill is the same in both arms.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coordinator.tokenizer import FileTokenizer
from deploy.agent_held_out import held_out_prompts
from deploy.bench import speedup_figures as figures
from deploy.bench.comparison import NEAR_TIE_GAP, first_difference
from deploy.bench.harness import BenchOptions, Outcome
from deploy.bench.reference import Reference
from deploy.bench.speedup_layouts import Kernels, layouts, measure_kernels, num_cores
from deploy.bench.speedup_run import PLAIN, TUNED, compare_arms, fastest, fixed_costs, pilot, running
from deploy.demo_model import resolve_model
from deploy.demo_report import tokens_per_second
from deploy.evaluate import SEED
from deploy.evaluation_texts import TextOptions, text_sets
from deploy.local import StackOptions
from deploy.shipped import trained_drafter
from deploy.up import stack_options
from draft_service.weights import fingerprint

plot = figures.plot


@dataclass(frozen=True)
class Size:
    """How much is decoded."""

    prompts_of_a_kind: int
    max_tokens: int
    pilot_prompts: int


def size_of(full: bool) -> Size:
    return Size(10, 128, 6) if full else Size(4, 64, 3)


def prompts_by_kind(options: BenchOptions, target: Path, count: int) -> dict[str, list[str]]:
    """The first prompts of each file, and held-out agent prompts of each kind."""
    texts = TextOptions(target, options.prompts, count, 3 * count, seed=SEED)
    return {one.name: [text.messages[0][1] for text in one.texts] for one in text_sets(texts)}


def pilot_prompts(count: int) -> list[str]:
    """Held-out agent prompts of another seed than those that are compared."""
    return [made.prompt for made in held_out_prompts(count, SEED + 1)]


async def measure(options: BenchOptions) -> Outcome:
    """Runs the yardstick."""
    size = size_of(options.full)
    target = resolve_model(options.target)
    drafter = trained_drafter(options.drafter, target)
    kinds = prompts_by_kind(options, target, size.prompts_of_a_kind)
    kernels = await asyncio.to_thread(measure_kernels, target, sorted({1, num_cores()}))
    options.say(f"one-row steps, ms by threads: {kernels.step_ms}")
    stack = stack_options(str(target), str(drafter), target_threads=1, draft_threads=1, coordinator_flags=())
    measured = await _measure(stack, kinds, kernels, size, options)
    pairs = await asyncio.to_thread(_judged, measured.pairs, target)
    details = {
        "drafter": drafter.name,
        "drafter_fingerprint": fingerprint(drafter),
        "kinds": [
            figures.kind_figures(kind, [p for p in pairs if p.kind == kind], measured.own_plain_ms)
            for kind in kinds
        ],
        **measured.details,
        "one_row_step_ms": kernels.step_ms,
        "prompts_of_a_kind": size.prompts_of_a_kind,
        "max_tokens": size.max_tokens,
    }
    return outcome_of(pairs, details)


@dataclass(frozen=True, eq=False)
class _Measured:
    """Pairs with their prompts, and what the pilot found.

    Attributes:
        own_plain_ms: T_1 on the stack that speculates.
    """

    pairs: Sequence[tuple[figures.Pair, str]]
    own_plain_ms: float
    details: Mapping[str, Any]


async def _measure(
    stack: StackOptions,
    kinds: Mapping[str, Sequence[str]],
    kernels: Kernels,
    size: Size,
    options: BenchOptions,
) -> _Measured:
    say = options.say
    async with contextlib.AsyncExitStack() as exits:
        stacks = [
            await exits.enter_async_context(running(layout, stack, say))
            for layout in layouts(num_cores(), kernels)
        ]
        prompts = pilot_prompts(size.pilot_prompts)
        tried = await pilot(stacks, prompts, say)
        plain, tuned = fastest(tried, PLAIN), fastest(tried, TUNED)
        (own,) = [one for one in tried if one.running is tuned.running and one.arm.name == PLAIN]
        costs = await fixed_costs(tuned.running, prompts, figures.one_token_ms(plain.replies))
        pairs = await compare_arms(kinds, plain.running, tuned.running, size.max_tokens, say)
    details = {
        "costs": costs,
        "layouts": [one.as_record() for one in tried],
        "plain_layout": plain.running.layout.name,
        "tuned_layout": tuned.running.layout.name,
    }
    return _Measured(pairs, figures.one_token_ms(own.replies), details)


def _judged(pairs: Sequence[tuple[figures.Pair, str]], target: Path) -> list[figures.Pair]:
    """Pairs whose texts differ, with the gap of the two best tokens where they part."""
    if all(not differing(pair) for pair, _ in pairs):
        return [pair for pair, _ in pairs]
    reference, tokenizer = Reference(target, num_cores()), FileTokenizer(target)
    judged = []
    for pair, prompt in pairs:
        notes, is_excused = [], True
        for expected, got in differing(pair):
            index = first_difference(expected, got)
            assert index is not None
            rendered = tokenizer.render_chat([{"role": "user", "content": prompt}])
            gap = reference.greedy_gap([*tokenizer.encode_rendered(rendered), *expected[:index]])
            is_excused = is_excused and gap < NEAR_TIE_GAP
            notes.append(f"token {index}: gap {gap:.1e}")
        judged.append(replace(pair, same_text=is_excused, note="; ".join(notes)))
    return judged


def differing(pair: figures.Pair) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Ids of the first plain run beside those of each run that are not the same."""
    expected = pair.plain[0].token_ids
    others = {reply.token_ids for reply in (*pair.plain[1:], *pair.tuned)}
    return [(expected, got) for got in sorted(others) if got != expected]


def outcome_of(pairs: Sequence[figures.Pair], details: Mapping[str, Any]) -> Outcome:
    """The value is the slowest agent kind's speed-up; every other set has a bar too."""
    kinds = details["kinds"]
    agents, sets = (figures.worst(kinds, agent=agent) for agent in (True, False))
    value = agents if agents is not None else sets
    assert value is not None
    same = all(one["same_text"] for one in kinds)
    passed = same and all(one["speedup"] >= one["bar"] for one in kinds)
    others = "no other set" if sets is None else f"slowest other set {sets:.2f}x, bar {figures.SET_BAR:g}"
    unit = f"x plain decoding, slowest agent kind ({others}; texts {'equal' if same else 'NOT equal'})"
    runs = [
        {
            "arm": f"{pair.kind}, {arm}",
            "value": tokens_per_second([reply]),
            "unit": "tokens/s",
            "num_tokens": len(reply.token_ids),
        }
        for pair in pairs
        for arm, replies in (("plain", pair.plain), ("tuned", pair.tuned))
        for reply in replies
    ]
    return Outcome(value, unit, figures.AGENT_BAR, passed, runs, details)
