"""One request's talk with the target: sends a round, waits for its answer, sends it again.

What an answer means is decided by the session; this module only moves messages and time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coordinator.commands import FeatureParts, fetch_command, tensor_bytes
from coordinator.ledger import Ledger
from coordinator.ports import Inbox, StreamLost, TargetPort
from coordinator.session import Outcome, RoundKind, Session
from protos import common_pb2, target_pb2
from protos.errors import DliteError, InvalidRequest, OutOfPages

# Also a target that shows life may have lost one message: after so many quiet periods ask again.
_PATIENCE = 4
_MIN_WAIT_SECONDS = 0.001


class OutOfStep(Exception):
    """The target is not where the session is; a re-open with an epoch above `held_epoch` helps."""

    def __init__(self, reason: str, held_epoch: int = 0) -> None:
        super().__init__(reason)
        self.held_epoch = held_epoch


@dataclass(frozen=True)
class Timers:
    """Seconds; see `CoordinatorConfig`."""

    resend_seconds: float
    hang_seconds: float


@dataclass(frozen=True)
class Taken:
    """A verdict that the session took, and which of its tokens were new."""

    verdict: target_pb2.Verdict
    tokens: tuple[int, ...]

    @property
    def logprobs(self) -> Sequence[common_pb2.PositionLogprobs]:
        """Of the new tokens; empty when they were not asked for."""
        all_of_them = self.verdict.logprobs
        return all_of_them[len(all_of_them) - len(self.tokens) :] if all_of_them else ()


def is_resend_due(quiet_seconds: float, silent_seconds: float, resend_seconds: float) -> bool:
    """Whether to send a round again.

    Args:
        quiet_seconds: since the round was sent or its request last heard of.
        silent_seconds: since the target last said anything (its Progress counts).
    """
    if quiet_seconds < resend_seconds:
        return False
    return silent_seconds >= resend_seconds or quiet_seconds >= _PATIENCE * resend_seconds


def public_field(field: str) -> str:
    """A field of the target's Open as clients know it."""
    for prefix, public in (("params.", ""), ("grammar", "response_format")):
        if field.startswith(prefix):
            return public + field.removeprefix(prefix)
    return field


class Exchange:
    """The target's side of one request."""

    def __init__(
        self,
        request_id: str,
        session: Session,
        port: TargetPort,
        ledger: Ledger,
        timers: Timers,
        now: Callable[[], float],
    ) -> None:
        self.inbox = Inbox()
        self._request_id = request_id
        self._session = session
        self._port = port
        self._ledger = ledger
        self._timers = timers
        self._now = now
        self._sent: tuple[target_pb2.Command, ...] = ()
        self._quiet_since = 0.0
        self._sent_at = 0.0
        self._parts = FeatureParts()
        self._pivot: common_pb2.Tensor | None = None

    def begin(self, commands: Sequence[target_pb2.Command]) -> None:
        """Sends the commands of a round the session has just begun."""
        self._sent = tuple(commands)
        self._sent_at = self._now()
        self._parts = FeatureParts()
        self._pivot = None
        self._send()

    async def next_verdict(self) -> Taken:
        """The next verdict of the awaited round.

        Raises:
            OutOfStep: re-open.
            DliteError: the target refuses the request for good.
        """
        while True:
            taken = await self._receive(self._wait_seconds())
            if taken is not None:
                return taken
            self._resend_if_due()

    async def pivot_features(self, expected: bool) -> common_pb2.Tensor:
        """The pivot features of the committed tokens: those on their way, else fetched.

        Args:
            expected: the last round asked for features.

        Raises:
            OutOfStep: re-open.
        """
        give_up = self._now() + self._timers.resend_seconds
        while expected and self._pivot is None and self._now() < give_up:
            await self._receive(max(give_up - self._now(), _MIN_WAIT_SECONDS))
        if self._pivot is None:
            self._session.begin(RoundKind.FETCH)
            self.begin([fetch_command(self._request_id, self._session)])
        while self._pivot is None:
            await self._receive(self._wait_seconds())
            self._resend_if_due()
        return self._pivot

    async def _receive(self, timeout_seconds: float) -> Taken | None:
        signal = await self.inbox.get(timeout_seconds)
        if signal is None:
            return None
        if isinstance(signal, StreamLost):
            raise OutOfStep(signal.reason)
        self._quiet_since = self._now()
        kind = signal.WhichOneof("kind")
        if kind == "verdict":
            self._ledger.target_bytes += signal.ByteSize()
            return self._on_verdict(signal.verdict)
        if kind == "features":
            self._on_features(signal.features)
        elif kind == "refused":
            self._on_refused(signal.refused)
        return None

    def _on_verdict(self, verdict: target_pb2.Verdict) -> Taken | None:
        commit = self._session.commit(verdict)
        if commit.outcome is Outcome.GAP:
            raise OutOfStep(
                f"a verdict ends at {verdict.committed_length} with {len(verdict.tokens)} tokens, "
                f"but {len(self._session.tokens)} are committed here"
            )
        return Taken(verdict, commit.tokens) if commit.outcome is Outcome.TAKEN else None

    def _on_features(self, features: target_pb2.Features) -> None:
        if features.epoch != self._session.epoch or features.round != self._session.round:
            return
        num_bytes = tensor_bytes(features.tensor)
        self._ledger.feature_bytes += num_bytes
        self._ledger.target_bytes += num_bytes
        tensor = self._parts.add(features)
        if tensor is not None and self._pivot is None:
            self._pivot = tensor
            self._session.complete_fetch(features)

    def _on_refused(self, refused: target_pb2.Refused) -> None:
        awaited = self._session.awaited
        if refused.epoch != self._session.epoch:
            return
        if refused.code == target_pb2.REFUSAL_CODE_STALE_EPOCH:
            raise OutOfStep("the target knows a higher epoch", refused.held_epoch)
        if awaited is None or refused.round != awaited.round:
            return
        if refused.code == target_pb2.REFUSAL_CODE_OUT_OF_STEP:
            raise OutOfStep(refused.message or "the target is out of step", refused.held_epoch)
        if refused.code == target_pb2.REFUSAL_CODE_INVALID_ARGUMENT:
            raise InvalidRequest(refused.message, field=public_field(refused.field))
        if refused.code == target_pb2.REFUSAL_CODE_RESOURCE_EXHAUSTED:
            raise OutOfPages(refused.message, field=refused.field, retry_after_seconds=1.0)
        raise DliteError(f"the target failed: {refused.message}")

    def _send(self) -> None:
        self._quiet_since = self._now()
        self._ledger.target_bytes += sum(command.ByteSize() for command in self._sent)
        self._port.send(self._sent)

    def _wait_seconds(self) -> float:
        due = self._quiet_since + self._timers.resend_seconds
        return max(due - self._now(), _MIN_WAIT_SECONDS)

    def _resend_if_due(self) -> None:
        now = self._now()
        silent = now - max(self._port.last_heard_seconds, self._sent_at)
        if silent >= self._timers.hang_seconds:
            self._port.suspect()
        if is_resend_due(now - self._quiet_since, silent, self._timers.resend_seconds):
            self._send()
