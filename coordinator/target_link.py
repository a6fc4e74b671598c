"""The stream to one target replica: events go to the inbox of their request."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence

from coordinator.commands import close_command
from coordinator.emulation import LinkShape
from coordinator.links import MISMATCH, ItemOutbox, StreamLink, hello_of
from coordinator.pairing import check_protocol
from coordinator.ports import Inbox, StreamLost
from coordinator.tuner.link_estimate import LinkEstimate
from protos import common_pb2, coordinator_pb2, rpc, target_pb2
from protos.errors import ContractMismatch
from protos.security import Address
from protos.stream import Outbox, Stamps

log = logging.getLogger("dlite.links")
METHOD = "/dlite.v1.Target/Decode"
# A target that works says how far it is once a second; what it said is old after this time.
_PROGRESS_SECONDS = 3.0
# No text has this name, nor so low an epoch: its Close does nothing but show that the engine answers.
_NOBODY = "~"


def _pack(commands: list[target_pb2.Command]) -> target_pb2.TargetCommand:
    return target_pb2.TargetCommand(commands=target_pb2.CommandList(commands=commands))


class TargetLink:
    """A `TargetStream` over gRPC.

    Invariant: `_closing` holds the closes that this stream's target has not confirmed yet; with the
    stream they are over, because the target frees everything of a stream that ends.

    Args:
        on_change: called with True and False when the connection comes and goes.
        emulated: what the link shall be like; None for as it is.
    """

    def __init__(
        self,
        address: Address,
        coordinator_id: str,
        resend_seconds: float,
        on_change: Callable[[bool], None],
        now: Callable[[], float] = time.monotonic,
        emulated: LinkShape | None = None,
    ) -> None:
        self.last_heard_seconds = 0.0
        self.estimate = LinkEstimate()
        self.num_lost = 0
        self.num_stale = 0
        self.refusal = ""
        self.last_error = ""
        self._coordinator_id = coordinator_id
        self._resend_seconds = resend_seconds
        self._on_change = on_change
        self._now = now
        self._describe: common_pb2.Describe | None = None
        self._progress = target_pb2.Progress()
        self._progress_at = -math.inf
        self._accept: Callable[[common_pb2.Describe], None] | None = None
        self._connected = asyncio.Event()
        self._is_suspect = False  # it owed an answer: a Welcome shows nothing of its engine
        self._inboxes: dict[str, Inbox] = {}
        self._closing: dict[tuple[str, int], target_pb2.Command] = {}
        self._close_timer: asyncio.TimerHandle | None = None
        self._outbox: ItemOutbox[target_pb2.Command] | None = None
        self._stamps = Stamps()
        self._link = StreamLink(address, METHOD, self, emulated)

    @property
    def describe(self) -> common_pb2.Describe:
        assert self._describe is not None, "the target was never connected"
        return self._describe

    @property
    def is_connected(self) -> bool:
        return self._connected.is_set()

    def measure_into(self, estimate: LinkEstimate) -> None:
        """From now on round trips are told to this estimate."""
        self.estimate = estimate

    def require(self, accept: Callable[[common_pb2.Describe], None]) -> None:
        self._accept = accept

    @property
    def rtt_seconds(self) -> float | None:
        return self._stamps.last_rtt_seconds

    def kv_stats(self) -> coordinator_pb2.KvStats | None:
        """How full the target's pool is; None when it has said nothing of late."""
        progress = self._progress
        if self._now() - self._progress_at > _PROGRESS_SECONDS:
            return None
        return coordinator_pb2.KvStats(
            pages_held=progress.pages_held,
            pages_cached=progress.pages_cached,
            num_pages=self.describe.num_pages,
        )

    def start(self) -> None:
        self._link.start()

    async def stop(self) -> None:
        await self._link.stop()

    async def wait_connected(self, timeout_seconds: float) -> bool:
        if self.is_connected:
            return True
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._connected.wait()
        except TimeoutError:
            return False
        return True

    def attach(self, request_id: str, inbox: Inbox) -> None:
        self._inboxes[request_id] = inbox

    def send(self, commands: Sequence[target_pb2.Command]) -> None:
        if self._outbox is not None and self.is_connected:
            for command in commands:
                self._outbox.put_item(command, command.ByteSize())

    def close(self, request_id: str, epoch: int, keep_length: int) -> None:
        self._inboxes.pop(request_id, None)
        if not epoch or not self.is_connected:
            return
        command = close_command(request_id, epoch, keep_length)
        self._closing[request_id, epoch] = command
        self.send([command])
        self._arm_close_timer()

    def suspect(self) -> None:
        log.warning("the target says nothing: cutting the stream")
        self._is_suspect = True
        self._link.cut()

    # What follows is called by the stream.

    def begin(self, generation: int, stamps: Stamps) -> Outbox:
        self._stamps = stamps
        self._outbox = ItemOutbox(_pack, rpc.TARGET_MESSAGE_BYTES)
        hello = hello_of(self._coordinator_id, generation)
        self._outbox.put(target_pb2.TargetCommand(hello=hello))
        return self._outbox

    def end(self) -> None:
        if self._outbox is not None:
            self._outbox.finish(target_pb2.TargetCommand(end=common_pb2.End(reason="shutting down")))

    def on_message(self, data: bytes) -> bool:
        message = target_pb2.TargetEvent.FromString(data)
        self._stamps.note(message.stamp, len(data))
        self.last_heard_seconds = self._now()
        body = message.WhichOneof("body")
        if body == "welcome":
            self._on_welcome(message.welcome.describe)
        elif body == "events":
            for event in message.events.events:
                self._route(event)
        return bool(body != "end")

    def on_round_trip(self, rtt_seconds: float, num_bytes: int) -> None:
        # The first round trip of a stream, Hello and Welcome, has the making of the connection in it.
        if self.is_connected:
            self.estimate.note(rtt_seconds, num_bytes)

    def on_lost(self, reason: str) -> None:
        self._outbox = None
        self.last_error = reason
        if reason.startswith(MISMATCH):
            self.refusal = reason.removeprefix(MISMATCH)
        self._closing.clear()
        if not self.is_connected:
            return
        self._connected.clear()
        self.num_lost += 1
        for inbox in self._inboxes.values():
            inbox.put(StreamLost(reason))
        self._on_change(False)

    def _on_welcome(self, describe: common_pb2.Describe) -> None:
        self._check(describe)
        self.refusal = ""
        self._describe = describe
        if self._is_suspect and self._outbox is not None:
            alive = close_command(_NOBODY, 1, 0)
            self._outbox.put_item(alive, alive.ByteSize())
        else:
            self._connect()

    def _check(self, describe: common_pb2.Describe) -> None:
        """Raises ContractMismatch when this is not what it was, or not what it must be."""
        check_protocol(describe, rpc.PROTOCOL_MAJOR)
        known = self._describe
        if known is not None and known.fingerprint != describe.fingerprint:
            raise ContractMismatch(
                f"the target is now {describe.fingerprint[:12]}, this coordinator serves "
                f"{known.fingerprint[:12]}: restart the coordinator to serve another model",
                field="fingerprint",
            )
        if self._accept is not None:
            self._accept(describe)

    def _connect(self) -> None:
        self._is_suspect = False
        self._connected.set()
        self._on_change(True)

    def _route(self, event: target_pb2.Event) -> None:
        kind = event.WhichOneof("kind")
        if kind == "progress":
            self._progress, self._progress_at = event.progress, self._now()
        if kind is None or kind == "progress":
            return
        body = getattr(event, kind)
        if kind in ("closed", "refused"):
            key = (body.request_id, body.epoch)
            if self._is_suspect and not self.is_connected:
                self._connect()
            if key in self._closing:
                del self._closing[key]
                return
        inbox = self._inboxes.get(body.request_id)
        if inbox is not None:
            inbox.put(event)
        elif kind == "verdict":
            self.num_stale += 1

    def _arm_close_timer(self) -> None:
        if self._close_timer is None:
            loop = asyncio.get_running_loop()
            self._close_timer = loop.call_later(self._resend_seconds, self._resend_closes)

    def _resend_closes(self) -> None:
        self._close_timer = None
        if self._closing:
            self.send(list(self._closing.values()))
            self._arm_close_timer()
