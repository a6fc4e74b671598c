"""The state of one request as its coordinator sees it. Pure: no I/O, no clock.

Words: `tokens` are the committed tokens (prompt and all the target decided), the last one is the
anchor. A round is named by (epoch, round); `Open` is round 0 of its epoch.

Invariant:
* 1 <= num_prompt_tokens <= len(tokens) <= num_prompt_tokens + max_tokens;
* at most one round is awaited, and it is the newest one: awaited.round == round;
* a finished session awaits nothing;
* epoch only grows; `tokens` only grows, except that `finish` may cut the end off (a stop string).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from protos import target_pb2
from protos.common_pb2 import FINISH_REASON_UNSPECIFIED, FinishReason
from protos.errors import ContractMismatch


class RoundKind(Enum):
    OPEN = auto()
    VERIFY = auto()
    RUN = auto()
    FETCH = auto()


class Outcome(Enum):
    TAKEN = auto()
    # Not awaited, or nothing new: a late or repeated answer.
    IGNORED = auto()
    # The target is elsewhere than this session: only a re-open helps.
    GAP = auto()


@dataclass(frozen=True)
class Awaited:
    """The round in flight; `num_proposals` is 0 unless it is a Verify."""

    kind: RoundKind
    round: int
    num_proposals: int = 0


@dataclass(frozen=True)
class Commit:
    """What a verdict did: the tokens that are new, and whether its round is over."""

    outcome: Outcome
    tokens: tuple[int, ...] = ()
    done: bool = False


_IGNORED = Commit(Outcome.IGNORED)
_GAP = Commit(Outcome.GAP)


@dataclass(eq=False)
class Session:
    """One request.

    Args:
        tokens: prompt and what was generated before (client resume); the session owns the list.
        num_prompt_tokens: everything that counts generated tokens counts from here.
        max_tokens: most tokens to generate.
    """

    tokens: list[int]
    num_prompt_tokens: int
    max_tokens: int
    epoch: int = 0
    round: int = 0
    awaited: Awaited | None = None
    finish_reason: FinishReason = field(default=FINISH_REASON_UNSPECIFIED)

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def num_remaining(self) -> int:
        return self.max_tokens - self.num_generated

    @property
    def is_finished(self) -> bool:
        return self.finish_reason != FINISH_REASON_UNSPECIFIED

    def reopen(self, epoch: int) -> None:
        """Begins round 0 of a higher epoch; whatever was awaited no longer is."""
        assert epoch > self.epoch, f"epoch {epoch} is not above {self.epoch}"
        assert not self.is_finished, "a finished session is not opened again"
        self.epoch = epoch
        self.round = 0
        self.awaited = Awaited(RoundKind.OPEN, 0)

    def begin(self, kind: RoundKind, num_proposals: int = 0) -> int:
        """Begins the next round and returns its number."""
        assert self.awaited is None, "one round at a time"
        assert not self.is_finished, "a finished session has no rounds"
        self.round += 1
        self.awaited = Awaited(kind, self.round, num_proposals)
        return self.round

    def commit(self, verdict: target_pb2.Verdict) -> Commit:
        """Takes a verdict if it is awaited and starts where the session ends.

        A `Run` that was sent again is answered by one verdict with all its tokens: of that one the
        suffix is taken, provided that what overlaps is equal.

        Raises:
            ContractMismatch: the verdict contradicts itself or the request's limits.
        """
        awaited = self.awaited
        if awaited is None or verdict.epoch != self.epoch or verdict.round != awaited.round:
            return _IGNORED
        if awaited.kind is RoundKind.FETCH:
            return _IGNORED
        start = verdict.committed_length - len(verdict.tokens)
        num_known = len(self.tokens) - start
        if start < 0 or num_known < 0:
            return _GAP
        if list(verdict.tokens[:num_known]) != self.tokens[start : start + len(verdict.tokens)]:
            return _GAP
        if num_known and awaited.kind is not RoundKind.RUN:
            return _GAP
        if num_known > len(verdict.tokens) or (num_known == len(verdict.tokens) and not verdict.done):
            return _IGNORED
        new_tokens = tuple(verdict.tokens[num_known:])
        self._check(verdict, awaited, new_tokens)
        self.tokens.extend(new_tokens)
        if verdict.done:
            self.awaited = None
            self.finish_reason = verdict.finish_reason
        return Commit(Outcome.TAKEN, new_tokens, verdict.done)

    def complete_fetch(self, features: target_pb2.Features) -> bool:
        """Ends an awaited `Fetch`; False when these features are not its answer."""
        awaited = self.awaited
        if awaited is None or awaited.kind is not RoundKind.FETCH:
            return False
        if features.epoch != self.epoch or features.round != awaited.round:
            return False
        self.awaited = None
        return True

    def finish(self, finish_reason: FinishReason, keep_length: int) -> None:
        """Ends the session from this side; committed tokens beyond `keep_length` do not stand."""
        assert self.num_prompt_tokens <= keep_length <= len(self.tokens), "cut outside the generated tokens"
        del self.tokens[keep_length:]
        self.awaited = None
        self.finish_reason = finish_reason

    def check_integrity(self) -> None:
        """Raises AssertionError when the invariant of this module does not hold."""
        assert 1 <= self.num_prompt_tokens <= len(self.tokens)
        assert 0 <= self.num_generated <= self.max_tokens
        if self.awaited is not None:
            assert not self.is_finished
            assert self.awaited.round == self.round
            assert (self.awaited.kind is RoundKind.OPEN) == (self.round == 0)
            assert self.epoch > 0

    def _check(self, verdict: target_pb2.Verdict, awaited: Awaited, new_tokens: tuple[int, ...]) -> None:
        if len(new_tokens) > self.num_remaining:
            raise ContractMismatch(
                f"the target decided {len(new_tokens)} tokens where {self.num_remaining} were left"
            )
        if verdict.finish_reason and not verdict.done:
            raise ContractMismatch("the target finished a request in a round that is not done")
        if awaited.kind is RoundKind.RUN:
            return
        num_decided, num_accepted = len(verdict.tokens), verdict.num_accepted
        if not verdict.done or not num_accepted <= awaited.num_proposals:
            raise ContractMismatch(
                f"{num_accepted} accepted of {awaited.num_proposals} proposals, done = {verdict.done}"
            )
        expected = num_accepted if verdict.finish_reason and num_decided == num_accepted else num_accepted + 1
        if num_decided != expected:
            raise ContractMismatch(f"{num_decided} tokens in a verdict with {num_accepted} accepted")
