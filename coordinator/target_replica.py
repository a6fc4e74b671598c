"""One target of a pool: its link, its texts, what belongs to it and the drafters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, runtime_checkable

from coordinator.bounds import limits_of
from coordinator.breaker import Breaker
from coordinator.membership import state_of
from coordinator.pair import Services
from coordinator.ports import Inbox, StreamLost, TargetPort
from coordinator.request import Request
from coordinator.tuner.link_estimate import LinkEstimate
from protos import common_pb2
from protos import coordinator_pb2 as pb


@runtime_checkable
class TargetStream(Protocol):
    """A `TargetPort` whose connection comes and goes; one in this process is just there."""

    estimate: LinkEstimate
    num_lost: int
    num_stale: int
    # Why the target that answers there is not used; empty otherwise.
    refusal: str
    # Why the stream ended last.
    last_error: str

    @property
    def is_connected(self) -> bool: ...

    @property
    def rtt_seconds(self) -> float | None: ...

    def kv_stats(self) -> pb.KvStats | None:
        """How full the target is; None while it says nothing."""
        ...

    def require(self, accept: Callable[[common_pb2.Describe], None]) -> None:
        """From now on a target is taken that this function takes; it raises ContractMismatch."""
        ...

    def start(self) -> None: ...

    async def stop(self) -> None: ...


class TargetReplica:
    """A target and the texts that are at it.

    Args:
        now: seconds, monotonic.
    """

    def __init__(self, address: str, port: TargetPort, now: Callable[[], float]) -> None:
        self.address = address
        self.port = port
        self.stream = port if isinstance(port, TargetStream) else None
        self.drain: asyncio.Task[None] | None = None
        # Texts that were ever opened here.
        self.num_served = 0
        self.breaker = Breaker(now)
        self._texts: dict[str, Inbox] = {}
        self._sent_away: set[str] = set()
        self._services: Services | None = None

    @property
    def services(self) -> Services:
        """What its texts run with."""
        assert self._services is not None, "the pool is bound to a coordinator before it serves"
        return self._services

    @services.setter
    def services(self, services: Services) -> None:
        self._services = replace(services, name=self.address)

    @property
    def num_texts(self) -> int:
        return len(self._texts)

    @property
    def is_serving(self) -> bool:
        """Connected, and to stay."""
        return self.port.is_connected and self.drain is None

    @property
    def is_favoured(self) -> bool:
        """Serving, and nothing went wrong of late."""
        return self.is_serving and self.breaker.allows

    def fits(self, request: Request) -> bool:
        """Whether prompt and answer have room here. Only of a target that is connected."""
        return (
            request.num_prompt_tokens + request.params.max_tokens <= limits_of(self.port.describe).max_length
        )

    def enter(self, request_id: str) -> None:
        """A text is to go on here."""
        self._texts[request_id] = Inbox()
        self.breaker.note_asked()

    def attach(self, request_id: str, inbox: Inbox) -> None:
        """The text's events go to this inbox."""
        self._texts[request_id] = inbox
        self.port.attach(request_id, inbox)

    def stay(self, request_id: str) -> None:
        """The text could go nowhere else, and may be sent away again."""
        self._sent_away.discard(request_id)

    def note_opened(self) -> None:
        """A text was opened: the target works."""
        self.num_served += 1
        self.breaker.note_answer()

    def leave(self, request_id: str) -> None:
        """The text has ended, or goes on elsewhere. Harmless when it has left."""
        self._texts.pop(request_id, None)
        self._sent_away.discard(request_id)

    def send_away(self, reason: str) -> None:
        """All texts are to go on elsewhere; each is told once."""
        for request_id in self._texts.keys() - self._sent_away:
            self._texts[request_id].put(StreamLost(reason))
            self._sent_away.add(request_id)

    @property
    def state(self) -> pb.ReplicaState:
        stream, is_draining = self.stream, self.drain is not None
        refusal, was_there = (stream.refusal, stream.num_lost > 0) if stream is not None else ("", True)
        return state_of(is_draining, self.port.is_connected, refusal, was_there)

    @property
    def status(self) -> pb.Replica:
        """For people."""
        stream, is_connected = self.stream, self.port.is_connected
        status = pb.Replica(
            kind=pb.REPLICA_KIND_TARGET,
            address=self.address,
            state=self.state,
            num_running=self.num_texts,
            num_served=self.num_served,
        )
        if is_connected:
            status.fingerprint = self.port.describe.fingerprint
        if stream is not None:
            status.num_lost = stream.num_lost
            status.last_error = stream.refusal or ("" if is_connected else stream.last_error)
        return status
