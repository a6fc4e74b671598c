"""What the rounds of one request did and where its time went.

Counters advance only after a block was cut at its end (EOS, stop string, limit): a block
`[d, d, EOS, d, d]` counts 3 tokens, 3 accepted, 3 verified. The accept length of a round is the
number of tokens it committed, the target's own included. Rates are unset, not 0, without data.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from protos import common_pb2, coordinator_pb2, target_pb2
from protos.coordinator_pb2 import PROPOSAL_SOURCE_LOOKUP, ProposalSource, Usage


@dataclass(frozen=True)
class Block:
    """One verified block.

    Args:
        source: lookup or drafter; None for tokens that the grammar forces.
        num_drafted: proposals made; num_verified: those the target verified.
        num_accepted: accepted prefix; num_kept: committed tokens that stand.
    """

    source: ProposalSource | None
    num_drafted: int
    num_verified: int
    num_accepted: int
    num_kept: int

    def trimmed(self) -> Block:
        """Nothing behind the last token that stands counts as verified or accepted."""
        if self.num_kept > self.num_accepted:
            return self
        return Block(self.source, self.num_drafted, self.num_kept, self.num_kept, self.num_kept)


@dataclass(frozen=True)
class RoundTimes:
    """Seconds of one round: inside the drafter, inside the target, waiting for both, all of it."""

    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    waited_seconds: float = 0.0
    total_seconds: float = 0.0

    @property
    def network_seconds(self) -> float:
        return max(self.waited_seconds - self.draft_seconds - self.verify_seconds, 0.0)

    @property
    def scheduling_seconds(self) -> float:
        return max(self.total_seconds - self.waited_seconds, 0.0)


@dataclass(frozen=True)
class Kernels:
    """What rounds a target's logits: where it differs, near-ties may fall the other way."""

    linear: str
    attention: str
    dtype: str
    num_threads: int

    @classmethod
    def of(cls, target: common_pb2.Describe) -> Kernels:
        return cls(target.linear_kernel, target.attention_kernel, target.dtype, target.num_threads)


@dataclass(eq=False)
class Ledger:
    """Sums over the rounds of one request: Verify and Run (Open is the prefill, Fetch commits nothing).

    `kernels` are those that decided its first token; `near_tie_possible` says that others followed.
    """

    num_rounds: int = 0
    num_lookup_rounds: int = 0
    num_forced_rounds: int = 0
    num_run_tokens: int = 0
    num_reopens: int = 0
    num_undrafted_rounds: int = 0
    num_drafted: int = 0
    num_verified: int = 0
    num_accepted: int = 0
    num_cached_tokens: int = 0
    num_recomputed_tokens: int = 0
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    network_seconds: float = 0.0
    scheduling_seconds: float = 0.0
    draft_bytes: int = 0
    target_bytes: int = 0
    feature_bytes: int = 0
    kernels: Kernels | None = None
    near_tie_possible: bool = False
    accept_lengths: list[int] = field(default_factory=list)
    accepted_counts: list[int] = field(default_factory=list)
    verified_per_position: list[int] = field(default_factory=list)
    accepted_per_position: list[int] = field(default_factory=list)

    def note_open(self, verdict: target_pb2.Verdict, elapsed_seconds: float) -> None:
        """Adds the first Open: waiting (beside that for a place, which is there already) and prefill."""
        queue_seconds = verdict.timing.queue_us / 1e6
        self.queue_seconds += queue_seconds
        self.prefill_seconds = max(elapsed_seconds - queue_seconds, 0.0)
        self.num_cached_tokens = verdict.cached_tokens

    def note_reopen(self, num_recomputed_tokens: int) -> None:
        """Adds an Open after the target lost the request."""
        self.num_reopens += 1
        self.num_recomputed_tokens += num_recomputed_tokens

    def note_target(self, target: common_pb2.Describe) -> None:
        """Adds the target that has opened the request and decided a token."""
        kernels = Kernels.of(target)
        self.kernels = self.kernels or kernels
        self.near_tie_possible |= kernels != self.kernels

    def note_block(self, block: Block) -> None:
        """Adds a round that had proposals."""
        block = block.trimmed()
        self.num_lookup_rounds += block.source == PROPOSAL_SOURCE_LOOKUP
        self.num_forced_rounds += block.source is None
        self.num_drafted += block.num_drafted
        self.num_verified += block.num_verified
        self.num_accepted += block.num_accepted
        self.accept_lengths.append(block.num_kept)
        self.accepted_counts.append(block.num_accepted)
        _count_prefix(self.verified_per_position, block.num_verified)
        _count_prefix(self.accepted_per_position, block.num_accepted)

    def note_times(self, times: RoundTimes) -> None:
        """Adds a finished round and its times."""
        self.num_rounds += 1
        self.draft_seconds += times.draft_seconds
        self.verify_seconds += times.verify_seconds
        self.network_seconds += times.network_seconds
        self.scheduling_seconds += times.scheduling_seconds

    def usage(self, num_prompt_tokens: int, num_completion_tokens: int, total_seconds: float) -> Usage:
        """The usage message; `total_seconds` is the life of the request."""
        decode_seconds = max(total_seconds - self.queue_seconds - self.prefill_seconds, 0.0)
        return Usage(
            prompt_tokens=num_prompt_tokens,
            cached_tokens=self.num_cached_tokens,
            completion_tokens=num_completion_tokens,
            drafted_tokens=self.num_drafted,
            verified_tokens=self.num_verified,
            accepted_tokens=self.num_accepted,
            recomputed_tokens=self.num_recomputed_tokens,
            queue_ms=self.queue_seconds * 1e3,
            prefill_ms=self.prefill_seconds * 1e3,
            decode_ms=decode_seconds * 1e3,
        )

    def to_message(self) -> coordinator_pb2.Ledger:
        num_blocks = len(self.accept_lengths)
        message = coordinator_pb2.Ledger(
            num_rounds=self.num_rounds,
            num_draft_rounds=num_blocks,
            num_lookup_rounds=self.num_lookup_rounds,
            num_forced_rounds=self.num_forced_rounds,
            num_run_tokens=self.num_run_tokens,
            draft_ms=self.draft_seconds * 1e3,
            verify_ms=self.verify_seconds * 1e3,
            network_ms=self.network_seconds * 1e3,
            scheduling_ms=self.scheduling_seconds * 1e3,
            draft_bytes=self.draft_bytes,
            target_bytes=self.target_bytes,
            feature_bytes=self.feature_bytes,
            accepted_histogram=_histogram(self.accepted_counts),
            verified_per_position=self.verified_per_position,
            accepted_per_position=_padded(self.accepted_per_position, len(self.verified_per_position)),
            accept_lengths=self.accept_lengths,
            num_reopens=self.num_reopens,
            num_undrafted_rounds=self.num_undrafted_rounds,
            near_tie_possible=self.near_tie_possible,
        )
        if num_blocks:
            message.accept_length = sum(self.accept_lengths) / num_blocks
        if self.num_verified:
            message.acceptance_rate = self.num_accepted / self.num_verified
        return message


def _count_prefix(counts: list[int], length: int) -> None:
    """Adds one to each of the first `length` counters."""
    counts.extend([0] * (length - len(counts)))
    for position in range(length):
        counts[position] += 1


def _padded(counts: list[int], length: int) -> list[int]:
    return counts + [0] * (length - len(counts))


def _histogram(values: list[int]) -> list[int]:
    """How often each of 0..max occurs; empty without values."""
    counts = [0] * (max(values) + 1) if values else []
    for value in values:
        counts[value] += 1
    return counts
