"""Which target a text goes to, and when it goes on at another one.

A text stays where it is while it can: its pages are there. When its target is lost, hangs or drains it
goes on at another, where prompt and committed tokens are computed anew; such texts are spread out by
load alone. Everything here is called on the event loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from coordinator.affinity import Affinity, beginnings_of, choose
from coordinator.request import Request
from coordinator.target_members import TargetMembers
from coordinator.target_replica import TargetReplica
from coordinator.tenants import prefix_salt
from protos.errors import Unavailable

_RETRY_SECONDS = 1.0


class TargetPool:
    """Knows where each text is.

    Args:
        now: seconds, monotonic.
    """

    def __init__(self, members: TargetMembers, now: Callable[[], float] = time.monotonic) -> None:
        self._members = members
        self._now = now
        self._affinity = Affinity()
        self._at: dict[str, TargetReplica] = {}

    async def settle(self, request: Request, patience_seconds: float) -> TargetReplica:
        """Where the text is to be opened: where it is if it can stay, else elsewhere.

        Raises:
            Unavailable: no target came for so long.
        """
        current = self._at.get(request.request_id)
        give_up = self._now() + patience_seconds
        while not (candidates := self._candidates(request)):
            seconds = give_up - self._now()
            if seconds <= 0 or not self._members.can_come_back:
                raise Unavailable(
                    f"no connection to the target for {patience_seconds:g} s",
                    retry_after_seconds=_RETRY_SECONDS,
                )
            await self._members.wait_change(seconds)
        if current is not None and current in candidates:
            current.stay(request.request_id)
            return current
        self.leave(request.request_id)
        replica = self._choose(request, candidates, is_new=current is None)
        replica.enter(request.request_id)
        self._at[request.request_id] = replica
        return replica

    def leave(self, request_id: str) -> None:
        """The text has ended. Harmless when it was nowhere."""
        replica = self._at.pop(request_id, None)
        if replica is not None:
            replica.leave(request_id)
            self._members.note_change()

    def _candidates(self, request: Request) -> list[TargetReplica]:
        """The best that there are: targets in good health, else those that serve, else those that drain."""
        there = [replica for replica in self._members if replica.port.is_connected]
        fitting = [replica for replica in there if replica.fits(request)]
        serving = [replica for replica in fitting if replica.is_serving]
        favoured = [replica for replica in serving if replica.is_favoured]
        # One that the text does not fit says so to its client.
        return favoured or serving or fitting or there

    def _choose(self, request: Request, candidates: Sequence[TargetReplica], is_new: bool) -> TargetReplica:
        if len(self._members) == 1:
            return candidates[0]
        prompt = request.token_ids[: request.num_prompt_tokens]
        page_size = candidates[0].port.describe.page_size
        beginnings = beginnings_of(prefix_salt(request.tenant), prompt, page_size)
        session = request.session.session_id
        favourite = None
        if is_new:
            favourite = self._affinity.favourite(session, beginnings, len(prompt))
        parent = self._at.get(request.fork_of)
        if parent is not None and parent in candidates and is_new:
            replica = parent
        else:
            by_address = {each.address: each for each in candidates}
            loads = {name: (each.num_texts, each.num_served) for name, each in by_address.items()}
            replica = by_address[choose(loads, favourite)]
        self._affinity.note(session, beginnings, replica.address)
        return replica
