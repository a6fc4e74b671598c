"""Draft services on a clock that jumps, at the other end of real links' bytes: they answer after a while,
hang, die and come back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from coordinator.coordinator import Coordinator
from coordinator.draft_link import DraftLink
from coordinator.draft_pool import DraftPool
from coordinator.links import MISMATCH
from coordinator.services import Backends
from coordinator.target_members import members_of
from protos import common_pb2, draft_pb2
from protos.errors import ContractMismatch
from protos.stream import Outbox, Stamps
from tests.coordinator_fakes import V
from tests.coordinator_harness import describe_drafter, describe_target, make_config, shared_tokenizer
from tests.timed_pair import TimedTarget, coin

Propose = Callable[[draft_pb2.ProposeItem], Sequence[int]]
_CONNECT_SECONDS = 0.001


def own_round(item: draft_pb2.ProposeItem) -> Sequence[int]:
    """Proposals by which a question is known again."""
    return [item.round % 250] * item.k


class WiredDrafter:
    """A draft service that answers each message as one batch.

    Args:
        seconds: how long its batch of this number takes; numbers begin at 1.
    """

    def __init__(
        self,
        seconds: Callable[[int], float] = lambda _: 0.002,
        propose: Propose = own_round,
        describe: common_pb2.Describe | None = None,
    ) -> None:
        self.items: list[draft_pb2.ProposeItem] = []
        self.hangs = False
        self.is_up = True
        # Why it refuses everything; empty: it does not.
        self.refuses = ""
        self.num_batches = 0
        self.num_waiting = 0
        self.ended: list[str] = []
        self.describe = describe or describe_drafter()
        self._seconds = seconds
        self._propose = propose
        self._generation = 0
        self._link: WiredLink | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def kill(self) -> None:
        """The stream breaks, and what was asked is lost."""
        self.is_up, self.num_waiting = False, 0
        self._generation += 1
        if self._link is not None:
            self._link.on_lost("killed by the test")

    def come_back(self) -> None:
        """It is there again, with another stream and batches that count from 1."""
        self.is_up, self.num_batches = True, 0
        if self._link is not None:
            self.open(self._link)

    def open(self, link: WiredLink) -> None:
        self._link = link
        if not self.is_up:
            return
        self._generation += 1
        task = asyncio.create_task(self._pump(link.begin(self._generation, Stamps()), self._generation))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def send(self, message: draft_pb2.ProposalBatch, generation: int) -> None:
        """To the coordinator, if it is still the same stream."""
        if self._link is None or generation != self._generation:
            return
        self.num_waiting -= len(message.proposals.proposals)
        try:
            self._link.on_message(message.SerializeToString())
        except ContractMismatch as error:
            self._link.on_lost(f"{MISMATCH}{error}")

    async def _pump(self, outbox: Outbox, generation: int) -> None:
        while (message := await outbox.get()) is not None:
            self._take(draft_pb2.ProposeBatch.FromString(message.SerializeToString()), generation)

    def _take(self, message: draft_pb2.ProposeBatch, generation: int) -> None:
        loop = asyncio.get_running_loop()
        body = message.WhichOneof("body")
        if body == "hello":
            welcome = common_pb2.Welcome(instance_id="wired", describe=self.describe)
            answer = draft_pb2.ProposalBatch(welcome=welcome)
            loop.call_later(_CONNECT_SECONDS, self.send, answer, generation)
        elif body == "items":
            self.items.extend(message.items.items)
            self.num_batches += 1
            self.num_waiting += len(message.items.items)
            if self.hangs:
                return
            seconds = self._seconds(self.num_batches)
            answer = self._answer(message.items.items, seconds)
            loop.call_later(seconds, self.send, answer, generation)
        else:
            self.ended.append(message.end.reason)

    def _answer(self, items: Sequence[draft_pb2.ProposeItem], seconds: float) -> draft_pb2.ProposalBatch:
        timing = common_pb2.Timing(
            step=self.num_batches,
            step_rows=len(items),
            step_us=round(seconds * 1e6),
            total_us=round(seconds * 1e6),
        )
        proposals = [
            draft_pb2.Proposal(
                request_id=item.request_id,
                epoch=item.epoch,
                round=item.round,
                tokens=[] if self.refuses else self._propose(item),
                timing=timing,
                refusal=draft_pb2.DraftRefusal(message=self.refuses) if self.refuses else None,
            )
            for item in items
        ]
        return draft_pb2.ProposalBatch(proposals=draft_pb2.ProposalList(proposals=proposals))


class WiredLink(DraftLink):
    """A `DraftLink` without a network."""

    def __init__(self, address: str, drafter: WiredDrafter, on_change: Callable[[], None]) -> None:
        now = asyncio.get_running_loop().time
        super().__init__(address, "c", describe_target(), now, on_change=on_change)
        self._drafter = drafter

    def start(self) -> None:
        self._drafter.open(self)

    async def stop(self) -> None:
        self.end()
        await asyncio.sleep(0)
        self.on_lost("stopped")


def wired_pool(drafters: dict[str, WiredDrafter], timeout_seconds: float = 2.0) -> DraftPool:
    """A pool on the running loop's clock; nobody is in it yet."""

    def connect(address: str, on_change: Callable[[], None]) -> DraftLink:
        return WiredLink(address, drafters[address], on_change)

    return DraftPool(connect, timeout_seconds, asyncio.get_running_loop().time)


async def pool_of(*drafters: WiredDrafter, timeout_seconds: float = 2.0) -> DraftPool:
    """A pool of these, named a, b, c, .., all connected."""
    named = dict(zip("abcdefgh", drafters, strict=False))
    pool = wired_pool(named, timeout_seconds)
    pool.set_addresses(list(named))
    await asyncio.sleep(2 * _CONNECT_SECONDS)
    return pool


def right_with(target: TimedTarget, chance: float) -> Propose:
    """Proposals that are the target's own with this chance, by a coin of text, position and place."""

    def propose(item: draft_pb2.ProposeItem) -> Sequence[int]:
        sequence = target.engine.sequences.get(item.request_id)
        generated = sequence.tokens[sequence.num_prompt :] if sequence is not None else []
        tokens: list[int] = []
        for j in range(1, item.k + 1):
            right = target.engine.decide(generated + tokens)
            tokens.append(right if coin(item.request_id, item.position, j) < chance else (right + 1) % V)
        return tokens

    return propose


def coordinator_of(target: TimedTarget, pool: DraftPool) -> Coordinator:
    """A coordinator on the running loop's clock."""
    backends = Backends(members_of(target), pool, shared_tokenizer())
    now = asyncio.get_running_loop().time
    config = make_config(resend_seconds=60.0, hang_seconds=600.0)
    return Coordinator(config, "test", backends, 1000, lambda count: b"\7" * count, now)
