"""One question to the drafters: whoever holds it may answer, and the first answer counts."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from protos import common_pb2, draft_pb2
from protos.errors import Unavailable

Key = tuple[str, int, int]


@dataclass(frozen=True)
class Author:
    """Who proposed: a replica's address, and the fingerprint of the weights it serves."""

    address: str = ""
    fingerprint: str = ""


NOBODY = Author()


class Holder(Protocol):
    """A replica that was asked."""

    @property
    def author(self) -> Author: ...

    @property
    def pending(self) -> Collection[Question]:
        """What it was asked and is not over."""
        ...

    def note_failure(self) -> None:
        """An answer was late or of no use."""
        ...

    def forget(self, question: Question) -> None:
        """The question is over: an answer that still comes has nobody waiting."""
        ...


class Question(asyncio.Future[draft_pb2.Proposal]):
    """The answer to one item, while it is waited for and afterwards.

    `holders` were asked and have neither answered nor gone; `winner` is the one whose answer counts, and
    `author` who that was when it answered.
    """

    __slots__ = ("author", "holders", "item", "key", "winner")

    def __init__(self, item: draft_pb2.ProposeItem) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self.item = item
        self.key: Key = (item.request_id, item.epoch, item.round)
        self.holders: list[Holder] = []
        self.winner: Holder | None = None
        self.author = NOBODY
        self.add_done_callback(type(self).end)

    def answer(self, holder: Holder, proposal: draft_pb2.Proposal) -> None:
        """Takes the answer of a holder."""
        if not self.done():
            self.winner, self.author = holder, holder.author
            self.set_result(proposal)

    def lose(self, holder: Holder, reason: str) -> None:
        """A holder is gone, and what it was asked with it."""
        self.holders.remove(holder)
        if not self.holders and not self.done():
            self.set_exception(Unavailable(reason))

    def end(self) -> None:
        """Nobody waits any more: nobody holds it any more."""
        for holder in self.holders:
            holder.forget(self)


@dataclass(frozen=True)
class Reach:
    """What a drafter can be asked for: so many proposals, with so many recent tokens."""

    k: int
    num_recent: int

    @classmethod
    def of(cls, describe: common_pb2.Describe) -> Reach:
        return cls(max(describe.block_size - 1, 1), max(describe.anchor_group_size, 1))

    def fit(self, item: draft_pb2.ProposeItem) -> draft_pb2.ProposeItem:
        """The item as this drafter can answer it."""
        if item.k <= self.k and len(item.recent_tokens) <= self.num_recent:
            return item
        fitting = draft_pb2.ProposeItem()
        fitting.CopyFrom(item)
        fitting.k = min(item.k, self.k)
        del fitting.recent_tokens[: -self.num_recent]
        return fitting
