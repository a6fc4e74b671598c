"""Target and drafter with set costs: they sleep by a table instead of computing.

Everything else is real: the engine with its scheduler and pages, the services, streams and wire.
The fake target's greedy text counts upwards, so the fake drafter knows it and can be right with a
set probability at each position. Measured this way, the system shows its own time alone.
"""

from __future__ import annotations

import bisect
import hashlib
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from draft_service.proposal import DraftDescription, DraftItem, DraftResult
from protos.codec import DTYPES
from protos.errors import InvalidRequest
from target_service.build import BuiltTarget, TargetDescription
from target_service.engine import Engine, StepOutput
from target_service.limits import EngineLimits
from target_service.packing import PackedStep

VOCAB_SIZE = 256
NUM_PAGES = 4096
PAGE_SIZE = 16
MAX_CONTEXT = 16384
MAX_VERIFY_BLOCK_SIZE = 32
Sleep = Callable[[float], None]


@dataclass(frozen=True)
class CostTable:
    """Seconds by size: a staircase, as kernels have it.

    Args:
        sizes: ascending upper ends of the steps; beyond the last one its cost is scaled up.
        seconds: cost of each step.
    """

    sizes: tuple[int, ...] = (1,)
    seconds: tuple[float, ...] = (0.0,)

    def __post_init__(self) -> None:
        if len(self.sizes) != len(self.seconds) or not self.sizes or list(self.sizes) != sorted(self.sizes):
            raise InvalidRequest(f"{self.sizes} and {self.seconds}: one cost for each ascending size")

    def __call__(self, size: int) -> float:
        """Cost of `size` rows (or items)."""
        step = bisect.bisect_left(self.sizes, size)
        if step < len(self.sizes):
            return self.seconds[step]
        return self.seconds[-1] * size / self.sizes[-1]


@dataclass(frozen=True)
class FeatureShape:
    """m tapped layers of width D, as the fake target ships them, in a wire dtype."""

    num_layers: int = 8
    width: int = 576
    dtype: str = "f32"


@dataclass(eq=False)
class FakeModel:
    """The engine's model: next token = token + 1, after a sleep for the step's rows."""

    cost: CostTable
    shape: FeatureShape
    sleep: Sleep = time.sleep
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    vocab_size: int = VOCAB_SIZE

    def copy_page(self, source: int, destination: int) -> None:
        """There is no KV."""

    def forward(self, step: PackedStep) -> StepOutput:
        seconds = self.cost(len(step.token_ids))
        if seconds > 0:
            self.sleep(seconds)
        tokens = step.token_ids[step.decision_rows]
        logits = torch.zeros(len(tokens), self.vocab_size)
        logits.scatter_(1, ((tokens + 1) % self.vocab_size)[:, None], 1.0)
        size = (len(tokens), self.shape.num_layers, self.shape.width)
        return StepOutput(logits, torch.zeros(size, dtype=DTYPES[self.shape.dtype]))


def fake_target(cost: CostTable, shape: FeatureShape | None = None) -> BuiltTarget:
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
    return BuiltTarget(Engine(FakeModel(cost, shape), limits), description, {})


class FakeDrafter:
    """Proposes the fake target's next tokens; proposal j is right with probability acceptance[j - 1].

    Coins are hashes of (request id, position, j), so a run can be repeated.

    Args:
        cost: seconds by number of items in the batch.
        acceptance: [K].
        shape: of the target's features.
        sleep: called once a batch.
    """

    def __init__(
        self,
        cost: CostTable,
        acceptance: Sequence[float],
        shape: FeatureShape | None = None,
        sleep: Sleep = time.sleep,
    ) -> None:
        shape = shape or FeatureShape()
        self._cost = cost
        self._acceptance = tuple(acceptance)
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
            block_size=len(self._acceptance) + 1,
            anchor_group_size=1,
            dtype="",
            notes=("sleeps by a table; a measuring aid, not a model",),
        )

    def propose(self, items: Sequence[DraftItem]) -> list[DraftResult]:
        """k proposals for each item after one sleep for the batch."""
        seconds = self._cost(len(items))
        if seconds > 0:
            self._sleep(seconds)
        return [self._answer(item) for item in items]

    def self_test(self) -> None:
        """There is nothing that could be wrong."""

    def _answer(self, item: DraftItem) -> DraftResult:
        anchor = item.recent_tokens[-1]
        right = [(anchor + j) % VOCAB_SIZE for j in range(1, item.k + 1)]
        tokens = [
            token if self._is_right(item, j) else (token + 7) % VOCAB_SIZE
            for j, token in enumerate(right, start=1)
        ]
        return DraftResult(tuple(tokens), self._acceptance[: item.k])

    def _is_right(self, item: DraftItem, j: int) -> bool:
        text = f"{item.request_id}/{item.position}/{j}".encode()
        digest = hashlib.blake2b(text, digest_size=8).digest()
        return (int.from_bytes(digest, "little") >> 11) * 2.0**-53 < self._acceptance[j - 1]
