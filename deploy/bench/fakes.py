"""Target and drafter with set costs: they sleep by a table instead of computing.

Everything else is real: the engine with its scheduler and pages, the services, streams and wire.
The fake target's greedy text counts upwards, so the fake drafter knows it and can be right with a
set probability at each position. Measured this way, the system shows its own time alone.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from deploy.bench.set_costs import Acceptance, DraftCosts, Sleep, VerifyCosts, precise_sleep
from draft_service.proposal import DraftDescription, DraftItem, DraftResult
from protos.codec import DTYPES
from target_service.build import BuiltTarget, TargetDescription
from target_service.engine import Engine, StepOutput
from target_service.limits import EngineLimits
from target_service.packing import PackedStep

VOCAB_SIZE = 256
NUM_PAGES = 4096
PAGE_SIZE = 16
MAX_CONTEXT = 16384
MAX_VERIFY_BLOCK_SIZE = 32


@dataclass(frozen=True)
class FeatureShape:
    """m tapped layers of width D, as the fake target ships them, in a wire dtype."""

    num_layers: int = 8
    width: int = 576
    dtype: str = "f32"


@dataclass(eq=False)
class FakeModel:
    """The engine's model: next token = token + 1, after a sleep for the step's rows and context."""

    costs: VerifyCosts
    shape: FeatureShape
    sleep: Sleep = precise_sleep
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    vocab_size: int = VOCAB_SIZE

    def copy_page(self, source: int, destination: int) -> None:
        """There is no KV."""

    def forward(self, step: PackedStep) -> StepOutput:
        seconds = self.costs(len(step.token_ids), sum(span.length for span in step.spans))
        if seconds > 0:
            self.sleep(seconds)
        tokens = step.token_ids[step.decision_rows]
        logits = torch.zeros(len(tokens), self.vocab_size)
        logits.scatter_(1, ((tokens + 1) % self.vocab_size)[:, None], 1.0)
        # One row seen as many: filling a megabyte of zeros each step would be compute.
        row = torch.zeros(1, self.shape.num_layers, self.shape.width, dtype=DTYPES[self.shape.dtype])
        return StepOutput(logits, row.expand(len(tokens), -1, -1))


def fake_target(costs: VerifyCosts, shape: FeatureShape | None = None) -> BuiltTarget:
    """A target to serve: real engine, sleeping model."""
    shape = shape or FeatureShape()
    limits = EngineLimits(
        page_size=PAGE_SIZE,
        num_pages=NUM_PAGES,
        prefill_rows=MAX_CONTEXT,
        max_context=MAX_CONTEXT,
        max_verify_block_size=MAX_VERIFY_BLOCK_SIZE,
        eos_ids=frozenset(),
    )
    description = TargetDescription(
        instance_id=uuid.uuid4().hex,
        model="fake-target",
        fingerprint="fake",
        embedding_hash="",
        tokenizer_hash="",
        vocab_size=VOCAB_SIZE,
        hidden_size=shape.width,
        num_layers=shape.num_layers,
        tapped_layers=tuple(range(shape.num_layers)),
        dtype="float32",
        attention_kernel="sleep",
        linear_kernel="sleep",
        max_context=MAX_CONTEXT,
        page_size=PAGE_SIZE,
        num_pages=NUM_PAGES,
        max_verify_block_size=MAX_VERIFY_BLOCK_SIZE,
        eos_ids=(),
        temperature=None,
        top_p=None,
        top_k=None,
        threads=1,
    )
    return BuiltTarget(Engine(FakeModel(costs, shape), limits), description, {})


class FakeDrafter:
    """Proposes the fake target's next tokens and is right as often as is set.

    Whether it knows the token at a position of a text is a hash of (request id, position): the same
    in every run and for every `v`, so that arms differ by what they do and not by luck. Each position
    is tried once at most: after a miss the target's own token becomes the anchor.

    Args:
        costs: seconds by items of the batch and the longest draft asked for.
        shape: of the target's features.
        sleep: called once a batch.
    """

    def __init__(
        self,
        costs: DraftCosts,
        acceptance: Acceptance,
        shape: FeatureShape | None = None,
        sleep: Sleep = precise_sleep,
    ) -> None:
        shape = shape or FeatureShape()
        self._costs = costs
        self._acceptance = acceptance
        self._sleep = sleep
        self.description = DraftDescription(
            drafter_kind="fake",
            model="fake-drafter",
            fingerprint="",
            embedding_hash="",
            vocab_size=VOCAB_SIZE,
            hidden_size=shape.width,
            num_target_layers=shape.num_layers,
            tapped_layers=tuple(range(shape.num_layers)),
            block_size=acceptance.num_proposals + 1,
            anchor_group_size=1,
            dtype="",
            notes=("sleeps by a table; a measuring aid, not a model",),
        )

    def propose(self, items: Sequence[DraftItem]) -> list[DraftResult]:
        """k proposals for each item after one sleep for the batch."""
        seconds = self._costs(len(items), max(item.k for item in items))
        if seconds > 0:
            self._sleep(seconds)
        forward_us = round(seconds * 1e6)
        return [self._answer(item, forward_us) for item in items]

    def self_test(self) -> None:
        """There is nothing that could be wrong."""

    def _answer(self, item: DraftItem, forward_us: int) -> DraftResult:
        anchor = item.recent_tokens[-1]
        acceptance = self._acceptance.at(item.request_id, item.position)[: item.k]
        tokens = tuple(
            (anchor + j + (0 if _coin(item.request_id, item.position + j) < chance else 7)) % VOCAB_SIZE
            for j, chance in enumerate(acceptance, start=1)
        )
        return DraftResult(tokens, acceptance, forward_us=forward_us)


def _coin(request_id: str, position: int) -> float:
    """A uniform number in [0, 1)."""
    digest = hashlib.blake2b(f"{request_id}@{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53
