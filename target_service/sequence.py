"""One request at the target.

    committed   token_ids[0 .. len)         prompt and every decided token
    in the KV   positions 0 .. kv_length    always fewer than committed
    anchor      token_ids[-1]               decided, not yet in the KV

Every round is the same job: extend the sequence by the committed tokens that are not in the KV
(the whole prompt at Open, the anchor alone later, everything after an eviction) and the round's
proposals, and decide from the rows of the anchor and the proposals.

Invariant (`check_integrity`): 0 <= kv_length < len(token_ids) while open; the pages cover
kv_length tokens; a finished sequence holds no pages.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum

import torch

from target_service.commands import (
    FinishReason,
    Held,
    Open,
    Refused,
    RequestKey,
    RoundCommand,
    SamplingParams,
    Step,
    Timing,
    Verdict,
    Verify,
)
from target_service.grammar import Matcher
from target_service.grammars import Maker
from target_service.logprobs import NO_LAW, PositionLogprobs
from target_service.processors import TextState
from target_service.verification import Limits


class SequenceState(Enum):
    IDLE = "idle"  # waits for the coordinator's next round
    WAITING = "waiting"  # has a round to compute
    FINISHED = "finished"


@dataclass(eq=False)
class ActiveRound:
    """A round that is being computed, and the clock of its parts."""

    command: RoundCommand
    arrived: float
    started: float | None = None
    step: Step | None = None  # the one under way, or the last one
    forward_seconds: float = 0.0
    sample_seconds: float = 0.0
    tokens: list[int] = field(default_factory=list)  # a Run's tokens so far
    logprobs: list[PositionLogprobs] = field(default_factory=list)  # of them, when asked for

    @property
    def proposals(self) -> tuple[int, ...]:
        return self.command.proposals if isinstance(self.command, Verify) else ()

    @property
    def number(self) -> int:
        return self.command.address.round

    def restart(self, now: float) -> None:
        """Begins the clock of a Run's next token."""
        self.arrived, self.started, self.step = now, None, None
        self.forward_seconds = self.sample_seconds = 0.0

    def timing(self, now: float) -> Timing:
        started = now if self.started is None else self.started
        return Timing(
            queue_seconds=started - self.arrived,
            forward_seconds=self.forward_seconds,
            sample_seconds=self.sample_seconds,
            total_seconds=now - self.arrived,
            step=self.step,
            step_seconds=now - self.step.started if self.step is not None else 0.0,
        )


@dataclass(frozen=True, eq=False)
class Answer:
    """The stored answer of the last done round."""

    verdict: Verdict | None  # None for a Fetch, and for a refusal
    features: torch.Tensor | None  # [m, D]
    refused: Refused | None = None  # the round found no token that is possible


class Sequence:
    """All state of one request. Only the engine's thread touches it."""

    def __init__(self, command: Open, arrival: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.key: RequestKey = command.address.key
        self.epoch = command.address.epoch
        self.arrival = arrival
        self.token_ids = list(command.token_ids)
        self.num_prompt_tokens = command.num_prompt_tokens
        self.sampling_key = command.sampling_key
        self.prefix_salt = command.prefix_salt
        self.params: SamplingParams = command.params
        self.text_state: TextState | None = None  # of the processors, from the first decision on
        self.grammar: Future[Maker] | None = None
        self.matcher: Matcher | None = None  # of the grammar, once that is compiled
        self.prompt_logprobs: list[PositionLogprobs] = [NO_LAW]  # of the prompt's first tokens
        self.kv_length = 0
        self.pages: list[int] = []
        self.page_hashes: list[bytes] = []  # of the full pages, for the prefix cache
        self.cached_tokens = 0
        self.lost_tokens = 0  # KV rows given up by an eviction, until they are found or computed
        self.pivot_features: torch.Tensor | None = None  # [m, D] of position kv_length - 1
        self.finish_reason: FinishReason | None = None
        self.last_round = -1
        self.answer: Answer | None = None
        self._clock = clock
        self.active: ActiveRound | None = None
        self.begin(command)

    def __repr__(self) -> str:
        return (
            f"Sequence({self.key.request_id}, {self.state.value}, epoch={self.epoch}, "
            f"committed={self.committed_length}, kv={self.kv_length}, pages={len(self.pages)})"
        )

    @property
    def state(self) -> SequenceState:
        if self.finish_reason is not None:
            return SequenceState.FINISHED
        return SequenceState.IDLE if self.active is None else SequenceState.WAITING

    @property
    def committed_length(self) -> int:
        return len(self.token_ids)

    @property
    def num_pending(self) -> int:
        """Committed tokens that are not in the KV; 1 (the anchor) between rounds."""
        return self.committed_length - self.kv_length

    @property
    def num_generated(self) -> int:
        return self.committed_length - self.num_prompt_tokens

    @property
    def proposals(self) -> tuple[int, ...]:
        """The active round's proposals that may be verified: the limit needs no more."""
        if self.active is None:
            return ()
        return self.active.proposals[: self.params.max_tokens - self.num_generated - 1]

    @property
    def awaits_grammar(self) -> bool:
        """Nothing is computed before its grammar is compiled."""
        return self.grammar is not None and self.matcher is None

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Until the first answer; then every row of the prompt must be computed, none found."""
        return self.params.prompt_logprobs and self.last_round < 0

    def limits(self, eos_ids: frozenset[int]) -> Limits:
        stops = self.params.stop_token_ids
        if not self.params.ignore_eos:
            stops = stops | eos_ids
        return Limits(stops, self.params.max_tokens - self.num_generated)

    def held(self) -> Held:
        return Held(self.epoch, self.last_round, self.committed_length)

    def begin(self, command: RoundCommand) -> None:
        """Starts a round."""
        assert self.active is None, f"{self!r} has a round"
        self.active = ActiveRound(command, self._clock())

    def finish_round(self, answer: Answer) -> None:
        """Stores the answer of the active round; a Run keeps one verdict with all its tokens."""
        assert self.active is not None
        self.last_round = self.active.number
        self.answer = answer
        self.active = None

    def take_recomputed(self) -> int:
        """Rows lost to evictions and computed again since the last verdict; resets the count."""
        count, self.lost_tokens = self.lost_tokens, 0
        return count

    def check_integrity(self, page_size: int) -> None:
        """Raises AssertionError when the invariant above does not hold."""
        if self.finish_reason is not None:
            assert not self.pages, f"{self!r} is finished and holds pages"
            return
        assert 0 <= self.kv_length < self.committed_length, f"{self!r}: KV must trail the anchor"
        assert len(self.pages) * page_size >= self.kv_length, f"{self!r}: pages miss tokens"
        assert len(self.page_hashes) <= self.kv_length // page_size, f"{self!r}: a hash of no page"
