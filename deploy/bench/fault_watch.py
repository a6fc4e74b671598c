"""What is under way between coordinators and one service, as somebody on the wire sees it; and what is done
to it: messages that are dropped, delayed or sent twice.

A round is under way from its command (or question) to its last answer. A fault that strikes meanwhile
strikes in mid-round: that is what `num_open` is for.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from deploy.bench.fault_proxy import Change
from protos import draft_pb2, target_pb2

Key = tuple[str, int, int]
# Commands that begin a round.
ROUNDS = frozenset(("open", "verify", "run", "fetch"))
DROP, DELAY, DUPLICATE = "drop", "delay", "duplicate"
STREAMS = ("/dlite.v1.Target/Decode", "/dlite.v1.Draft/Propose")
# What passes in every conversation; the others (hold, fetch, preempted, refused) are met when they occur.
# A text has one of each, so that more of them are taken.
_ONCE, _ONCE_SHARE = frozenset(("open", "close", "closed")), 0.4
COMMON = frozenset(("open", "verify", "close", "verdict", "features", "closed", "item", "proposal"))
_TO_TARGET, _FROM_TARGET = target_pb2.TargetCommand, target_pb2.TargetEvent
_TO_DRAFT, _FROM_DRAFT = draft_pb2.ProposeBatch, draft_pb2.ProposalBatch
# Messages of each direction, and where their items are: body, and the repeated field in it.
_ITEMS: dict[Any, tuple[str, str]] = {
    _TO_TARGET: ("commands", "commands"),
    _FROM_TARGET: ("events", "events"),
    _TO_DRAFT: ("items", "items"),
    _FROM_DRAFT: ("proposals", "proposals"),
}


@dataclass(eq=False)
class Meddling:
    """What happens to a share of all items.

    Args:
        action: "drop", "delay" or "duplicate".
        share: of the items of each kind; more of those that a text has one of.
        seconds: how much later a delayed one, or the second of two, comes.
    """

    action: str
    share: float
    seconds: float = 0.1
    seed: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def times(self, kind: str) -> tuple[float, ...]:
        """When an item is to be sent: once at once, or otherwise."""
        share = _ONCE_SHARE if kind in _ONCE else self.share
        if kind == "progress" or self._random.random() >= share:
            return (0.0,)
        self.counts[kind] += 1
        return {DROP: (), DELAY: (self.seconds,), DUPLICATE: (0.0, self.seconds)}[self.action]


@dataclass(eq=False)
class Watch:
    """Of one service; `meddling` is None while nothing is done.

    Invariant: a key is in `_open` from its command until its answer, the end of its request or its stream.

    Args:
        on_change: called after every message.
    """

    is_target: bool
    on_change: Callable[[], None] = lambda: None
    meddling: Meddling | None = None
    counts: Counter[str] = field(default_factory=Counter)
    num_closed_in_round: int = 0
    num_preempted_in_round: int = 0
    pages_held: int = 0
    # Pages held beyond those of the requests that were known, when the target told last. Requests with
    # a prefix in common hold fewer.
    surplus_pages: int | None = None
    page_size: int = 16
    _open: dict[Key, int] = field(default_factory=dict)
    # Committed tokens of each request, and its stream.
    _lengths: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def num_open(self) -> int:
        """Rounds under way."""
        return len(self._open)

    @property
    def num_answers(self) -> int:
        """Verdicts or proposals so far."""
        return self.counts["verdict" if self.is_target else "proposal"]

    def knows(self, name: str) -> bool:
        """Whether the target holds a request with this in its id."""
        return any(name in request_id for request_id in self._lengths)

    def ways(self, method: str) -> tuple[Change, Change] | None:
        """See `Middle`."""
        return (self.to_service, self.from_service) if method in STREAMS else None

    def forget(self, stream: int) -> None:
        """A stream is over, and all that was under way on it."""
        self._open = {key: each for key, each in self._open.items() if each != stream}
        self._lengths = {name: each for name, each in self._lengths.items() if each[1] != stream}
        self.on_change()

    def to_service(self, data: bytes, stream: int) -> Iterator[tuple[float, bytes]]:
        """What goes on to the service: seconds to wait, and a message."""
        return self._pass(data, _TO_TARGET if self.is_target else _TO_DRAFT, self._note_question, stream)

    def from_service(self, data: bytes, stream: int) -> Iterator[tuple[float, bytes]]:
        """What goes on to the coordinator."""
        return self._pass(data, _FROM_TARGET if self.is_target else _FROM_DRAFT, self._note_answer, stream)

    def _pass(
        self, data: bytes, message_type: Any, note: Callable[[str, Any, int], None], stream: int
    ) -> Iterator[tuple[float, bytes]]:
        message = message_type.FromString(data)
        body, name = _ITEMS[message_type]
        items = list(getattr(getattr(message, body), name))
        kinds = [item.WhichOneof("kind") if self.is_target else name.removesuffix("s") for item in items]
        for kind, item in zip(kinds, items, strict=True):
            self.counts[kind] += 1
            note(kind, getattr(item, kind) if message_type is _FROM_TARGET else item, stream)
        self.on_change()
        if self.meddling is None or not items:
            yield 0.0, data
            return
        for kind, item in zip(kinds, items, strict=True):
            for seconds in self.meddling.times(kind):
                one = message_type(stamp=message.stamp)
                getattr(getattr(one, body), name).append(item)
                yield seconds, one.SerializeToString()

    def _note_question(self, kind: str, item: Any, stream: int) -> None:
        if kind in ROUNDS or kind == "item":
            self._open[item.request_id, item.epoch, item.round] = stream
        elif kind == "close":
            self.num_closed_in_round += self._close(item.request_id)
            self._lengths.pop(item.request_id, None)

    def _note_answer(self, kind: str, item: Any, stream: int) -> None:
        if kind == "progress":
            # A committed token is in the KV but for the newest, the anchor.
            self.pages_held = item.pages_held
            known = sum(-(-(length - 1) // self.page_size) for length, _ in self._lengths.values())
            self.surplus_pages = item.pages_held - known
            return
        if kind == "verdict":
            self._lengths[item.request_id] = item.committed_length, stream
        if kind == "preempted":
            self.num_preempted_in_round += any(key[0] == item.request_id for key in self._open)
        elif kind == "closed":
            self._close(item.request_id)
            self._lengths.pop(item.request_id, None)
        elif kind == "proposal" or kind == "refused" or (kind == "verdict" and item.done):
            self._open.pop((item.request_id, item.epoch, item.round), None)

    def _close(self, request_id: str) -> bool:
        """Whether a round of this request was under way."""
        mine = [key for key in self._open if key[0] == request_id]
        for key in mine:
            del self._open[key]
        return bool(mine)


class Pulse:
    """Wakes whoever waits for a condition on what it is told of."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def beat(self) -> None:
        """Something has changed."""
        self._event.set()

    async def when(self, is_true: Callable[[], bool]) -> None:
        """Waits until it is."""
        while not is_true():
            self._event.clear()
            await self._event.wait()
