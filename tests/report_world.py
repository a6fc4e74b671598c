"""Results and rounds of a load test that never ran: arms in turn, a switch in mid-run, three classes."""

from __future__ import annotations

import random
from dataclasses import dataclass

from coordinator.loadtest.rounds import PointRounds
from coordinator.trace.record import RoundParts, RoundRecord, RoundSource, Share, Step

ABOUT: dict[str, str | int | float] = {
    "model": "tiny",
    "hidden_size": 576,
    "num_tapped_layers": 5,
    "drafter": "small",
    "drafter_kv_bytes_per_token": 2 * 2 * 3 * 64 * 4,
}
CLASSES = ("code", "prose", "tool calls")


@dataclass
class Clock:
    now: float = 50.0


def rounds_of(num_requests: int = 8, run_id: str = "run-0", seed: int = 1) -> PointRounds:
    """A, B, B, A; acceptance falls in mid-run, and v follows a little later."""
    draw, clock = random.Random(seed).random, Clock()
    speculative: list[RoundRecord] = []
    plain: list[RoundRecord] = []
    classes: dict[str, str] = {}
    for block, arm in ((0, "speculative"), (1, "plain"), (1, "plain"), (0, "speculative")):
        for session in range(num_requests):
            name = f"{run_id}-{arm}-{block * 100 + session}-{len(speculative)}"
            classes[name] = CLASSES[session % len(CLASSES)]
            if arm == "plain":
                plain.append(_run(name, clock, 30))
            else:
                speculative += _drafts(name, clock, draw(), session)
    return PointRounds(tuple(speculative), tuple(plain), classes, ABOUT)


def _drafts(name: str, clock: Clock, luck: float, session: int) -> list[RoundRecord]:
    rate = (0.9, 0.6, 0.8)[session % 3] * (0.3 if session >= 5 else 1.0)
    size = 6 if session < 6 else 2
    draw, found, context = random.Random(luck).random, [], 200 + 100 * session
    for number in range(10):
        accepted = 0
        while accepted < size - 1 and draw() < rate:
            accepted += 1
        parts = RoundParts(0.004, 0.018 + 0.001 * size, 0.0012, 0.0009, 0.0006, 0.0007)
        clock.now += parts.wall
        found.append(
            RoundRecord(
                *(clock.now, name, "chat/drafter", RoundSource.DRAFTER, number, 7, size - 1, accepted),
                *(accepted + 1, False, context - 200, context, number + 1, 1, parts, Step(), Step()),
                Share(size, 1, 1, 120.0),
            )
        )
        context += accepted + 1
    return found


def _run(name: str, clock: Clock, num_tokens: int) -> RoundRecord:
    parts = RoundParts(verify=0.0165 * num_tokens)
    clock.now += parts.wall
    return RoundRecord(
        *(clock.now, name, "chat/run", RoundSource.RUN, 1, 0, 0, 0, num_tokens, False, 1, 300, 0, 0),
        *(parts, Step(), Step(), Share()),
    )
