"""What the engine is told and what it answers: the target's half of the wire as frozen records.

Protobuf stops at `wire.py`. Names and rules are those of protos/target.proto.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

import torch

from target_service.grammar import GrammarSpec
from target_service.logprobs import PositionLogprobs
from target_service.rejection import TruncatedLaw


class FinishReason(Enum):
    STOP = "stop"
    LENGTH = "length"
    ERROR = "error"  # no token is possible; told by a Refused, never by a Verdict


class RefusalCode(Enum):
    STALE_EPOCH = "stale_epoch"
    OUT_OF_STEP = "out_of_step"
    INVALID_ARGUMENT = "invalid_argument"


@dataclass(frozen=True)
class SamplingParams:
    """Shapes the target's law and ends the request.

    Temperature 0 is greedy; above it the draw is coupled, or that of rejection sampling. Penalties,
    bad words and min_tokens count generated tokens from num_prompt_tokens; the repetition penalty
    counts the prompt too.
    """

    temperature: float = 0.0
    top_k: int = 0  # 0 = off
    top_p: float = 1.0
    min_p: float = 0.0
    max_tokens: int = 1
    ignore_eos: bool = False
    stop_token_ids: frozenset[int] = frozenset()
    uses_rejection: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: frozenset[int] = frozenset()  # empty: all
    bad_words: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0
    logprobs: bool = False
    top_logprobs: int = 0
    prompt_logprobs: bool = False

    @property
    def has_penalties(self) -> bool:
        counted = (self.presence_penalty, self.frequency_penalty)
        return any(counted) or self.repetition_penalty != 1.0

    @property
    def has_processors(self) -> bool:
        """Whether logits change before temperature and filters."""
        sets = (self.logit_bias, self.allowed_token_ids, self.bad_words, self.min_tokens)
        return self.has_penalties or any(bool(value) for value in sets)


@dataclass(frozen=True)
class RequestKey:
    """One request of one coordinator."""

    coordinator_id: str
    request_id: str


@dataclass(frozen=True)
class Address:
    """Which round of which request; Hold and Close carry round 0."""

    key: RequestKey
    epoch: int
    round: int


@dataclass(frozen=True)
class Open:
    address: Address
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    sampling_key: bytes
    params: SamplingParams
    want_features: bool = False
    fork_of: str = ""  # request whose pages hold a prefix of token_ids
    grammar: GrammarSpec | None = None
    prefix_salt: bytes = b""  # its pages are found by sequences of the same salt only


@dataclass(frozen=True)
class Verify:
    address: Address
    committed_length: int
    proposals: tuple[int, ...] = ()
    cohort: int = 0
    want_features: bool = False
    laws: tuple[TruncatedLaw, ...] = ()  # rejection: what each proposal was drawn from


@dataclass(frozen=True)
class Run:
    address: Address
    committed_length: int
    max_tokens: int
    want_features: bool = False


@dataclass(frozen=True)
class Fetch:
    address: Address
    committed_length: int


@dataclass(frozen=True)
class Hold:
    address: Address


@dataclass(frozen=True)
class Close:
    address: Address
    keep_length: int = 0  # committed tokens that stand; pages beyond them are not found again


RoundCommand = Open | Verify | Run | Fetch
Command = RoundCommand | Hold | Close


@dataclass(frozen=True)
class Step:
    """One step of the engine: what all requests in it shared.

    Args:
        number: from 1. rows: of all requests; prefill_rows: those of prompts, or computed again.
        context: committed tokens that its rows read, summed over its requests.
        started: seconds, on the engine's clock.
    """

    number: int
    rows: int
    prefill_rows: int
    context: int
    started: float


@dataclass(frozen=True)
class Timing:
    """Seconds inside the target: waiting for a step, in forward passes, deciding, all of it.

    Args:
        step: the deciding one; step_seconds: of it, deciding included.
    """

    queue_seconds: float = 0.0
    forward_seconds: float = 0.0
    sample_seconds: float = 0.0
    total_seconds: float = 0.0
    step: Step | None = None
    step_seconds: float = 0.0


@dataclass(frozen=True)
class Verdict:
    address: Address
    committed_length: int
    tokens: tuple[int, ...]
    num_accepted: int = 0
    num_verified: int = 0
    done: bool = True
    finish_reason: FinishReason | None = None
    timing: Timing = field(default_factory=Timing)
    recomputed_tokens: int = 0
    cached_tokens: int = 0  # Open only: found in the prefix cache or a fork's source
    logprobs: tuple[PositionLogprobs, ...] = ()  # of each token, when asked for
    prompt_logprobs: tuple[PositionLogprobs, ...] = ()  # Open only, of each prompt token
    forced_tokens: tuple[int, ...] = ()

    def as_partial(self) -> Verdict:
        """A Run's verdict that is not its last."""
        return replace(self, done=False)

    def with_tokens(self, tokens: tuple[int, ...], logprobs: tuple[PositionLogprobs, ...]) -> Verdict:
        """The same answer for all tokens of a Run."""
        return replace(self, tokens=tokens, logprobs=logprobs)


@dataclass(frozen=True, eq=False)
class Features:
    address: Address
    tensor: torch.Tensor  # [m, D]


@dataclass(frozen=True)
class Progress:
    step: int
    queued_rows: int
    pages_held: int = 0
    pages_cached: int = 0


@dataclass(frozen=True)
class Preempted:
    address: Address


@dataclass(frozen=True)
class Closed:
    address: Address


@dataclass(frozen=True)
class Held:
    """What the target holds of a request; epoch 0 means nothing."""

    epoch: int = 0
    round: int = 0
    committed_length: int = 0


@dataclass(frozen=True)
class Refused:
    address: Address
    code: RefusalCode
    message: str
    field: str = ""
    held: Held = Held()


Event = Verdict | Features | Progress | Preempted | Closed | Refused
