"""The last turns of each session, within bounds. A session never sees another's turns."""

from __future__ import annotations

from collections import OrderedDict

from coordinator.turns import Turn

# Of one session: an agent may branch off from an earlier turn.
MAX_TURNS = 8


class SessionMemory:
    """Turns by session; the sessions not used for longest are forgotten first.

    Invariant: `num_bytes` is the sum over all turns, and at most `max_bytes`.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._sessions: OrderedDict[str, list[Turn]] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def turns(self, session_id: str) -> tuple[Turn, ...]:
        """The session's turns, the newest last; using them keeps the session."""
        turns = self._sessions.get(session_id)
        if turns is None:
            return ()
        self._sessions.move_to_end(session_id)
        return tuple(turns)

    def remember(self, session_id: str, turn: Turn) -> None:
        """Adds a turn; the oldest ones of this session, and then the least recently used sessions, go."""
        if turn.num_bytes > self._max_bytes:
            return
        turns = self._sessions.setdefault(session_id, [])
        self._sessions.move_to_end(session_id)
        turns.append(turn)
        self.num_bytes += turn.num_bytes
        while len(turns) > MAX_TURNS:
            self.num_bytes -= turns.pop(0).num_bytes
        while self.num_bytes > self._max_bytes:
            self._forget_one()

    def _forget_one(self) -> None:
        """The oldest turn of the least recently used session, which goes with its last turn."""
        session_id, turns = next(iter(self._sessions.items()))
        self.num_bytes -= turns.pop(0).num_bytes
        if not turns:
            del self._sessions[session_id]
