"""Other drafters under load, and back by itself when the new ones are worse.

Drafters keep nothing, so nothing moves: the new ones are connected beside the old ones, the old ones drain,
and acceptance before and after is compared. Until that is decided the old ones must stay up.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from coordinator.swap import CERTAIN_EARLY, Acceptance, Comparison, compare
from protos import coordinator_pb2 as pb
from protos.errors import InvalidRequest, TimedOut

log = logging.getLogger("dlite.coordinator")


class Operator(Protocol):
    """One coordinator, or several that share their drafters."""

    async def list_replicas(self) -> pb.ListReplicasResponse: ...

    async def set_drafters(self, addresses: Sequence[str]) -> None: ...


@dataclass(frozen=True)
class SwapOptions:
    """How a swap is judged.

    Args:
        num_rounds: drafted rounds that are compared, before and after; 0 compares nothing.
        tolerance: the part of tau that may be lost.
        watch_seconds: how long each of the two windows may take.
        connect_seconds: how long the new drafters may take to serve.
    """

    num_rounds: int = 500
    tolerance: float = 0.05
    watch_seconds: float = 600.0
    connect_seconds: float = 60.0
    look_seconds: float = 0.5


@dataclass(frozen=True)
class SwapResult:
    """How it went. `reason` says why the old drafters are back; empty when the new ones stay."""

    old: tuple[str, ...]
    new: tuple[str, ...]
    reason: str
    before: Acceptance
    after: Acceptance
    comparison: Comparison | None

    @property
    def is_kept(self) -> bool:
        """Whether the new drafters stay."""
        return not self.reason


class Swap:
    """One swap.

    Args:
        tell: is told what happens, for people.
        sleep, now: seconds.
    """

    def __init__(
        self,
        operator: Operator,
        options: SwapOptions,
        tell: Callable[[str], None] = log.info,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._operator = operator
        self._options = options
        self._tell = tell
        self._sleep = sleep
        self._now = now

    async def run(self, new: Sequence[str]) -> SwapResult:
        """Swaps, compares, and goes back if that is worse.

        Raises:
            InvalidRequest: nothing would change.
            TimedOut: too few rounds came to say how the old drafters do; nothing was changed.
            DliteError: a coordinator does not answer; the old drafters are asked for again.
        """
        there = _drafters(await self._operator.list_replicas())
        staying = [each.address for each in there if each.state != pb.REPLICA_STATE_DRAINING]
        # Several coordinators name each of them.
        old = list(dict.fromkeys(staying))
        if set(old) == set(new):
            raise InvalidRequest("these drafters are there already", field="draft_address")
        before = Acceptance()
        if old and self._options.num_rounds:
            self._tell(f"watching {self._options.num_rounds} rounds of {', '.join(old)}")
            before = await self._watch(old, None)
            if before.num_rounds < self._options.num_rounds:
                raise TimedOut(
                    f"only {before.num_rounds} drafted rounds in {self._options.watch_seconds:g} s: nothing "
                    "was changed; fewer rounds may be compared, or none"
                )
        try:
            reason, after = await self._change(old, new, before)
        except BaseException:
            self._tell("something went wrong: back to the old drafters")
            await asyncio.shield(self._operator.set_drafters(old))
            raise
        if reason:
            self._tell(f"back to {', '.join(old) or 'no drafter'}: {reason}")
            await self._operator.set_drafters(old)
        comparison = compare(before, after, self._options.tolerance)
        return SwapResult(tuple(old), tuple(new), reason, before, after, comparison)

    async def _change(
        self, old: Sequence[str], new: Sequence[str], before: Acceptance
    ) -> tuple[str, Acceptance]:
        """Why not, or nothing; and what the new ones showed."""
        self._tell(f"connecting {', '.join(new)}")
        await self._operator.set_drafters(list(dict.fromkeys([*old, *new])))
        missing = await self._wait_serving(new)
        if missing:
            return missing, Acceptance()
        await self._operator.set_drafters(new)
        if not before.num_rounds:
            return "", Acceptance()
        self._tell(f"watching {self._options.num_rounds} rounds of {', '.join(new)}")
        after = await self._watch(new, before)
        comparison = compare(before, after, self._options.tolerance)
        if comparison is not None and comparison.is_worse():
            return f"accept length {comparison.after:.3f} instead of {comparison.before:.3f}", after
        if after.num_rounds < self._options.num_rounds:
            return f"only {after.num_rounds} drafted rounds in {self._options.watch_seconds:g} s", after
        return "", after

    async def _watch(self, addresses: Sequence[str], before: Acceptance | None) -> Acceptance:
        """Rounds of these drafters from now on; fewer than wanted when the time is over or, compared with
        `before`, they are plainly worse."""
        start: Acceptance | None = None
        give_up = self._now() + self._options.watch_seconds
        while True:
            listed = await self._operator.list_replicas()
            names = {each.fingerprint for each in _drafters(listed) if each.address in addresses}
            total = Acceptance.of(listed.drafts, names)
            start = start if start is not None else total
            found = total.since(start)
            if found.num_rounds >= self._options.num_rounds or self._now() >= give_up:
                return found
            if before is not None:
                seen = compare(before, found, self._options.tolerance)
                if seen is not None and seen.is_worse(CERTAIN_EARLY):
                    return found
            await self._sleep(self._options.look_seconds)

    async def _wait_serving(self, addresses: Sequence[str]) -> str:
        """Why one of them does not serve; empty when all do."""
        give_up = self._now() + self._options.connect_seconds
        while True:
            there = {each.address: each for each in _drafters(await self._operator.list_replicas())}
            found = [there.get(address, pb.Replica(address=address)) for address in addresses]
            waiting = [each for each in found if each.state != pb.REPLICA_STATE_SERVING]
            if not waiting:
                return ""
            for each in waiting:
                if each.state == pb.REPLICA_STATE_REFUSED:
                    return f"{each.address} is refused: {each.last_error}"
            if self._now() >= give_up:
                return f"{waiting[0].address} does not serve within {self._options.connect_seconds:g} s"
            await self._sleep(self._options.look_seconds)


def _drafters(listed: pb.ListReplicasResponse) -> list[pb.Replica]:
    return [each for each in listed.replicas if each.kind == pb.REPLICA_KIND_DRAFTER]


def describe_result(result: SwapResult) -> dict[str, object]:
    """As `dlite swap-drafter --json` prints it."""
    comparison = result.comparison
    return {
        "is_kept": result.is_kept,
        "reason": result.reason,
        "old": list(result.old),
        "new": list(result.new),
        "rounds_before": result.before.num_rounds,
        "rounds_after": result.after.num_rounds,
        "accept_length_before": comparison.before if comparison else None,
        "accept_length_after": comparison.after if comparison else None,
        "standard_error": comparison.error if comparison else None,
        "num_positions": comparison.num_positions if comparison else 0,
    }
