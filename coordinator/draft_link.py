"""The stream to one draft replica: questions out, answers matched by (request, epoch, round)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from weakref import WeakSet

from coordinator.breaker import Breaker
from coordinator.commands import tensor_bytes
from coordinator.emulation import LinkShape
from coordinator.links import MISMATCH, ItemOutbox, StreamLink, hello_of
from coordinator.pairing import check_pairing, check_protocol
from coordinator.question import Author, Key, Question, Reach
from coordinator.tuner.link_estimate import LinkEstimate
from protos import common_pb2, draft_pb2, rpc
from protos.security import Address
from protos.splice import Spliced
from protos.stream import Outbox, Stamps

log = logging.getLogger("dlite.links")
METHOD = "/dlite.v1.Draft/Propose"
_ITEM_OVERHEAD_BYTES = 512


def _pack(items: list[draft_pb2.ProposeItem]) -> Spliced:
    fields = draft_pb2.ProposeBatch.ITEMS_FIELD_NUMBER, draft_pb2.ProposeList.ITEMS_FIELD_NUMBER
    return Spliced(*fields, (item.SerializeToString() for item in items))


class DraftLink:
    """One replica behind gRPC (see `draft_pool.Replica`).

    Args:
        target: what the drafter must fit to.
        emulated: what the link shall be like; None for as it is.
        on_change: called when the replica came, went or was refused.
    """

    def __init__(
        self,
        address: Address,
        coordinator_id: str,
        target: common_pb2.Describe,
        now: Callable[[], float] = time.monotonic,
        emulated: LinkShape | None = None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.refusal = ""
        self.last_error = ""
        self.author = Author(str(address))
        self.estimate = LinkEstimate()
        self.num_lost = 0
        self.num_stale = 0
        self._estimates = WeakSet([self.estimate])
        self._coordinator_id = coordinator_id
        self._target = target
        self._on_change = on_change
        self._breaker = Breaker(now)
        self._describe: common_pb2.Describe | None = None
        self._reach = Reach(1, 1)
        self._connected = asyncio.Event()
        self._settled = asyncio.Event()
        self._pending: dict[Key, Question] = {}
        self._outbox: ItemOutbox[draft_pb2.ProposeItem] | None = None
        self._stamps = Stamps()
        self._link = StreamLink(address, METHOD, self, emulated)

    @property
    def describe(self) -> common_pb2.Describe | None:
        return self._describe

    @property
    def is_connected(self) -> bool:
        return self._connected.is_set()

    @property
    def is_available(self) -> bool:
        return self.is_connected and self._breaker.allows

    def measure_into(self, estimate: LinkEstimate) -> None:
        """From now on round trips are told to this estimate too."""
        self._estimates.add(estimate)

    @property
    def pending(self) -> Collection[Question]:
        """Questions that were asked here and are not over."""
        return self._pending.values()

    @property
    def rtt_seconds(self) -> float | None:
        """Round trip of the wire alone, from the last echoed stamp."""
        return self._stamps.last_rtt_seconds

    def start(self) -> None:
        self._link.start()

    async def stop(self) -> None:
        await self._link.stop()

    async def wait_settled(self, timeout_seconds: float) -> bool:
        """Waits until the drafter is connected or refused; False when the time is over."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._settled.wait()
        except TimeoutError:
            return False
        return True

    def ask(self, question: Question) -> None:
        """Asks; without a connection the question is lost at once. Those asked together travel together."""
        question.holders.append(self)
        if self._outbox is None or not self.is_connected:
            question.lose(self, "no drafter is connected")
            return
        self._pending[question.key] = question
        self._breaker.note_asked()
        item = self._reach.fit(question.item)
        self._outbox.put_item(item, tensor_bytes(item.features) + _ITEM_OVERHEAD_BYTES)

    def forget(self, question: Question) -> None:
        # The same question may have been asked again meanwhile.
        if self._pending.get(question.key) is question:
            del self._pending[question.key]

    def note_failure(self) -> None:
        """Says that an answer was late or of no use: `is_available` turns false for a while."""
        self._breaker.note_failure()

    # What follows is called by the stream.

    def begin(self, generation: int, stamps: Stamps) -> Outbox:
        self._stamps = stamps
        self._outbox = ItemOutbox(_pack, rpc.TARGET_MESSAGE_BYTES)
        hello = hello_of(self._coordinator_id, generation)
        self._outbox.put(draft_pb2.ProposeBatch(hello=hello))
        return self._outbox

    def end(self) -> None:
        if self._outbox is not None:
            self._outbox.finish(draft_pb2.ProposeBatch(end=common_pb2.End(reason="shutting down")))

    def on_message(self, data: bytes) -> bool:
        message = draft_pb2.ProposalBatch.FromString(data)
        self._stamps.note(message.stamp, len(data))
        body = message.WhichOneof("body")
        if body == "welcome":
            self._on_welcome(message.welcome.describe)
        elif body == "proposals":
            for proposal in message.proposals.proposals:
                self._on_proposal(proposal)
        return bool(body != "end")

    def on_round_trip(self, rtt_seconds: float, num_bytes: int) -> None:
        # The first round trip of a stream, Hello and Welcome, has the making of the connection in it.
        if self.is_connected:
            for estimate in self._estimates:
                estimate.note(rtt_seconds, num_bytes)

    def on_lost(self, reason: str) -> None:
        self._outbox = None
        self.num_lost += self.is_connected
        self.last_error = reason
        self._connected.clear()
        if reason.startswith(MISMATCH):
            self.refusal = f"drafter refused: {reason.removeprefix(MISMATCH)}"
            self._settled.set()
        self._on_change()
        lost, self._pending = self._pending, {}
        for question in lost.values():
            question.lose(self, f"the drafter's stream is lost: {reason}")

    def _on_welcome(self, describe: common_pb2.Describe) -> None:
        check_protocol(describe, rpc.PROTOCOL_MAJOR)
        check_pairing(self._target, describe)
        self.refusal = ""
        self._describe, self._reach = describe, Reach.of(describe)
        # A replay drafter has no weights.
        self.author = Author(self.author.address, describe.fingerprint or describe.drafter_kind)
        self._breaker.note_answer()
        self._connected.set()
        self._settled.set()
        self._on_change()

    def _on_proposal(self, proposal: draft_pb2.Proposal) -> None:
        question = self._pending.pop((proposal.request_id, proposal.epoch, proposal.round), None)
        # A late answer has nobody waiting: dropped, and no sign of health.
        if question is None or question.done():
            self.num_stale += 1
            return
        self._breaker.note_answer()
        question.answer(self, proposal)
