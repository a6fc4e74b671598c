"""How a draft replica does, as one pool sees it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Protocol

from coordinator.membership import state_of
from coordinator.question import Holder, Question
from coordinator.tuner.link_estimate import LinkEstimate
from protos import common_pb2, draft_pb2
from protos import coordinator_pb2 as pb

# A mean follows the last eight answers or so.
_WEIGHT = 1 / 8
# What was known of a replica that nobody asked for so long is forgotten, so that it is tried again.
_FORGET_SECONDS = 10.0
# The batches of each replica are numbered on their own; numbers of two replicas are never the same.
_STEP_BITS = 32


class Replica(Holder, Protocol):
    """One drafter that can be asked. `DraftLink` is one over gRPC."""

    refusal: str
    last_error: str
    num_lost: int
    num_stale: int
    estimate: LinkEstimate

    @property
    def describe(self) -> common_pb2.Describe | None: ...

    @property
    def is_connected(self) -> bool: ...

    @property
    def is_available(self) -> bool:
        """Connected, and no question of late went wrong."""
        ...

    @property
    def rtt_seconds(self) -> float | None: ...

    def ask(self, question: Question) -> None:
        """Becomes a holder of the question; without a connection it is lost at once."""
        ...

    def measure_into(self, estimate: LinkEstimate) -> None:
        """Round trips are told to this estimate too."""
        ...

    def start(self) -> None: ...

    async def stop(self) -> None: ...


class Standing:
    """One replica of a pool and what is known of it.

    Args:
        number: of the replica in its pool, never used twice.
        now: seconds, monotonic.
    """

    def __init__(self, address: str, number: int, replica: Replica, now: Callable[[], float]) -> None:
        self.address = address
        self.replica = replica
        self.drain: asyncio.Task[None] | None = None
        self.num_answered = 0
        self.last_answer = -math.inf
        self._number = number
        self._now = now
        self._mean_seconds = 0.0

    @property
    def is_usable(self) -> bool:
        """Whether it may be asked something new."""
        return self.drain is None and self.replica.is_available

    @property
    def work(self) -> tuple[int, float]:
        """What is less goes first: questions it holds, then how long it took to answer of late."""
        known = self._now() - self.last_answer < _FORGET_SECONDS
        return len(self.replica.pending), self._mean_seconds if known else 0.0

    def note_answer(self, proposal: draft_pb2.Proposal, seconds: float) -> None:
        """Takes an answer that counts, and gives its batch a number that no other replica has."""
        self.num_answered += 1
        self.last_answer = self._now()
        self.note_seconds(seconds)
        if self._number and proposal.timing.step:
            proposal.timing.step += self._number << _STEP_BITS

    def note_seconds(self, seconds: float) -> None:
        """Takes how long an answer took, or has not come by now."""
        self._mean_seconds += (seconds - self._mean_seconds) * (_WEIGHT if self._mean_seconds else 1.0)

    @property
    def state(self) -> pb.ReplicaState:
        replica, is_draining = self.replica, self.drain is not None
        return state_of(is_draining, replica.is_connected, replica.refusal, replica.describe is not None)

    @property
    def status(self) -> pb.Replica:
        """For people."""
        replica = self.replica
        return pb.Replica(
            kind=pb.REPLICA_KIND_DRAFTER,
            address=self.address,
            state=self.state,
            num_running=len(replica.pending),
            fingerprint=replica.author.fingerprint,
            num_served=self.num_answered,
            num_lost=replica.num_lost,
            last_error=replica.refusal or ("" if replica.is_connected else replica.last_error),
        )
