"""F11: the law of the text while the real tuner decides k, v and source from round to round.

Coupled text is a function of key and prefix, so it must be plain decoding's token by token; rejection
text must follow the target's law, which a tuner that looks at proposals bends.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

import torch

from coordinator.trace.record import RoundRecord, RoundSource
from coordinator.tuner.probing import ProbeSettings
from coordinator.tuner.tuner import TunerSettings
from deploy.in_process import InProcess, in_process
from protos import coordinator_pb2
from target_service.build import BuiltTarget
from target_service.engine import StepOutput
from target_service.packing import PackedStep
from tests.conformance import generate_all, request
from tests.fakes import TableDrafter, table_built
from tests.test_conformance_rejection import FAR_P, FAR_Q, critical, rejection

K = 3
NUM_TEXTS = 40
LENGTH = 250
STEP_SECONDS = 0.003


def slow_target() -> BuiltTarget:
    """Steps that take their time, so that speculation pays although little is accepted."""
    built = table_built(FAR_P.log().expand(4, 4), num_pages=1024)
    model = built.engine.model
    right = model.forward

    def forward(step: PackedStep) -> StepOutput:
        time.sleep(STEP_SECONDS)
        return right(step)

    model.forward = forward  # type: ignore[method-assign]
    return replace(built)


def tuned(message: coordinator_pb2.GenerateRequest) -> coordinator_pb2.GenerateRequest:
    """Nothing explicit: the tuner chooses."""
    message.speculation.ClearField("num_draft_tokens")
    message.speculation.ClearField("verify_block_size")
    return message


class Seen:
    """How many proposals rounds of a draft had verified."""

    def __init__(self) -> None:
        self.verified: Counter[int] = Counter()
        self.tails = 0

    def put(self, record: RoundRecord) -> None:
        self.verified[record.num_verified] += 1
        self.tails += record.source is RoundSource.TAIL


def look_often(system: InProcess) -> None:
    """Probes in most rounds, at sizes that are drawn: the law must hold at any v, and on a busy machine
    it might seldom pay to speculate at all."""
    tuner = system.coordinator.cohorts.tuner
    tuner._settings = TunerSettings(probes=ProbeSettings(most=0.6, budget=1e9))


async def texts(
    system: InProcess, messages: list[coordinator_pb2.GenerateRequest]
) -> tuple[list[list[int]], Seen]:
    """All at once; and what their rounds did."""
    seen = Seen()
    with system.coordinator.feed.listening(seen):
        found = await generate_all(system, messages)
    assert all(one.error == "" for one in found)
    return [list(one.answer.token_ids) for one in found], seen


async def test_rejection_follows_its_law_under_the_tuner() -> None:
    """Far laws: a v, or a source, chosen by what was proposed is biased here."""
    fields = {"max_tokens": LENGTH, "token_ids": [0]}
    async with in_process(slow_target(), TableDrafter(FAR_Q.log().expand(4, 4), K)) as system:
        look_often(system)
        messages = [tuned(rejection(f"f{i}", fields, 4, 0, i)) for i in range(NUM_TEXTS)]
        found, seen = await texts(system, messages)
    tokens = [token for text in found for token in text]
    counts = torch.bincount(torch.tensor(tokens), minlength=4).double()
    expected = FAR_P.double() * counts.sum()
    assert counts.sum() == NUM_TEXTS * LENGTH
    assert float(((counts - expected) ** 2 / expected).sum()) < critical(3), counts / counts.sum()
    # It did speculate, at every size; a blind round has no tail.
    assert set(seen.verified) == {0, 1, 2, 3}
    assert sum(count for size, count in seen.verified.items() if size) > 500, seen.verified
    assert seen.tails == 0


async def test_coupled_text_is_plain_decodings_under_the_tuner() -> None:
    fields = {"max_tokens": 100, "token_ids": [0]}
    async with in_process(slow_target(), TableDrafter(FAR_Q.log().expand(4, 4), K)) as system:
        look_often(system)
        plain = [request(f"p{i}", {**fields, "seed": i}, 1.0, 0, 0) for i in range(10)]
        coupled = [tuned(request(f"c{i}", {**fields, "seed": i}, 1.0, 4, 0)) for i in range(10)]
        expected, _ = await texts(system, plain)
        found, seen = await texts(system, coupled)
    assert found == expected
    assert sum(count for size, count in seen.verified.items() if size) > 100, seen.verified
