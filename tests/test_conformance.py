"""Every request parameter under speculation equals plain decoding: alone at every v and j, in pairs at
v = B, greedy and coupled (pitfalls B4, B7, C1, C3, C6, F11).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from deploy.in_process import in_process
from protos import coordinator_pb2
from tests.conformance import (
    BLOCK,
    FILTERS,
    MODES,
    PARAMETERS,
    PROMPTS,
    Outcome,
    ScriptedDrafter,
    differences,
    generate,
    generate_all,
    request,
    target,
    tokenizer,
)

K = BLOCK - 1
EVERY = list(itertools.product(range(1, BLOCK + 1), range(BLOCK)))
GRAMMARS = ("json_schema", "regex", "choice", "grammar")
# Two grammars cannot be given at once.
PAIRS = [pair for pair in itertools.combinations(PARAMETERS, 2) if not {*pair} <= {*GRAMMARS}]
DEAD_END = "no token is possible"
Fields = Mapping[str, Any]


async def compare(cases: Mapping[str, Fields], mode: str, grid: Iterable[tuple[int, int]]) -> list[str]:
    """Runs every case plainly and at every (v, j); returns what differs."""
    built, drafter = target(), ScriptedDrafter()
    temperature = MODES.get(mode, 1.0)
    numbered = list(itertools.product(cases, range(len(PROMPTS))))
    async with in_process(built, drafter, tokenizer()) as system:
        plain = await generate_all(
            system, [request(f"{n}:{i}:plain", cases[n], temperature, 0, i) for n, i in numbered]
        )
        for (name, _), outcome in zip(numbered, plain, strict=True):
            # Two masks may exclude one another; a parameter alone must work.
            assert outcome.error == "" or ("+" in name and DEAD_END in outcome.error), (name, outcome.error)
        messages: list[coordinator_pb2.GenerateRequest] = []
        expected: list[Outcome] = []
        for (v, j), ((name, i), reference) in itertools.product(grid, zip(numbered, plain, strict=True)):
            message = request(f"{name}:{i}:{v}:{j}", cases[name], temperature, v, i)
            if mode == "match":
                message.speculation.mode = coordinator_pb2.SPECULATION_MODE_MATCH
            drafter.record(message, reference, j)
            messages.append(message)
            expected.append(reference)
        found = await generate_all(system, messages)
    assert built.engine.pool.num_available == built.engine.pool.num_pages
    return [
        f"{message.request_id}: {difference}"
        for message, one, other in zip(messages, found, expected, strict=True)
        for difference in [*differences(one, other), *_undrafted(message, one)]
    ]


def _undrafted(message: coordinator_pb2.GenerateRequest, found: Outcome) -> list[str]:
    """A comparison of two undrafted texts would show nothing."""
    ledger = found.answer.finished.ledger
    if message.speculation.verify_block_size == 1 or len(found.answer.token_ids) < 3:
        return []
    return [] if ledger.num_draft_rounds and not ledger.num_undrafted_rounds else ["was not drafted"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PARAMETERS)
async def test_each_parameter_at_every_v_and_j(name: str, mode: str) -> None:
    assert await compare({name: PARAMETERS[name]}, mode, EVERY) == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("first", list(dict(PAIRS)))
async def test_every_pair(first: str, mode: str) -> None:
    cases = {f"{a}+{b}": {**PARAMETERS[a], **PARAMETERS[b]} for a, b in PAIRS if a == first}
    assert await compare(cases, mode, [(BLOCK, 0), (BLOCK, 2), (BLOCK, K)]) == []


async def test_match_mode() -> None:
    assert await compare(PARAMETERS, "match", [(BLOCK, 2), (3, K)]) == []


@pytest.mark.parametrize("mode", MODES)
async def test_no_parameter_is_inert(mode: str) -> None:
    """Values that change no text would pass every comparison."""
    async with in_process(target(), None, tokenizer()) as system:
        prompts = range(len(PROMPTS))
        plain = [await generate(system, request("without", {}, MODES[mode], 0, i)) for i in prompts]
        for name, fields in PARAMETERS.items():
            if mode == "greedy" and name in FILTERS:
                continue
            found = [await generate(system, request(name, fields, MODES[mode], 0, i)) for i in prompts]
            assert any(map(differences, found, plain)), name


async def test_a_grammar_that_only_a_compiler_refuses_is_named() -> None:
    """What the target finds is told under the client's name of the field."""
    async with in_process(target(), None, tokenizer()) as system:
        for name, value in (("regex", "("), ("json_schema", '{"type": "nope"}'), ("grammar", "start: x")):
            found = await generate(system, request(name, {"response_format": {name: value}}, 0.0, 0))
            assert found.error.startswith(f"response_format.{name}: "), found.error


@pytest.mark.parametrize("mode", MODES)
async def test_forced_tokens_are_proposed(mode: str) -> None:
    """Without a drafter the grammar's forced tokens still make rounds, and all of them stand."""
    async with in_process(target(), None, tokenizer()) as system:
        plain = await generate(system, request("plain", PARAMETERS["json_schema"], MODES[mode], 0))
        found = await generate(system, request("forced", PARAMETERS["json_schema"], MODES[mode], BLOCK))
    ledger = found.answer.finished.ledger
    assert differences(found, plain) == []
    assert ledger.num_forced_rounds == ledger.num_draft_rounds > 0
    assert ledger.acceptance_rate == 1.0
    assert plain.answer.finished.ledger.num_forced_rounds == 0
