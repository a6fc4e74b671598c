"""Requests and measurements of the yardsticks that run on services with set costs."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.client import AsyncClient
from deploy.bench.fakes import VOCAB_SIZE
from protos import coordinator_pb2
from protos.errors import Unavailable

PROMPT_LENGTH = 8


def fixed_rounds(num_draft_tokens: int, verify_block_size: int | None = None) -> coordinator_pb2.Speculation:
    """Every round asks the drafter for k and verifies v; the tuner has no say."""
    return coordinator_pb2.Speculation(
        source=coordinator_pb2.PROPOSAL_SOURCE_DRAFTER,
        num_draft_tokens=num_draft_tokens,
        verify_block_size=verify_block_size or num_draft_tokens + 1,
    )


def tuned_rounds() -> coordinator_pb2.Speculation:
    """The tuner chooses."""
    return coordinator_pb2.Speculation(source=coordinator_pb2.PROPOSAL_SOURCE_DRAFTER)


def plain_rounds() -> coordinator_pb2.Speculation:
    """`Run`: the target decodes alone."""
    return coordinator_pb2.Speculation(mode=coordinator_pb2.SPECULATION_MODE_OFF)


def counting_request(
    request_id: str, max_tokens: int, speculation: coordinator_pb2.Speculation
) -> coordinator_pb2.GenerateRequest:
    """A text of the fake target. Its name decides what the fake drafter knows of it (`FakeDrafter`)."""
    return coordinator_pb2.GenerateRequest(
        request_id=request_id,
        token_ids=[token % VOCAB_SIZE for token in range(PROMPT_LENGTH)],
        max_tokens=max_tokens,
        temperature=0.0,
        speculation=speculation,
    )


@dataclass(frozen=True)
class Text:
    """One text as its client saw it.

    Args:
        first_seconds, last_seconds: when the first and the last token came, on this process's clock.
        num_tokens: all of them; num_rounds: with proposals.
        arrivals: when tokens came, and how many.
    """

    first_seconds: float
    last_seconds: float
    num_tokens: int
    num_rounds: int
    ledger: coordinator_pb2.Ledger
    arrivals: tuple[tuple[float, int], ...] = ()

    @property
    def round_seconds(self) -> float:
        """From the first token on, which the prompt's prefill has given."""
        return (self.last_seconds - self.first_seconds) / max(self.num_rounds, 1)


async def take(client: AsyncClient, request: coordinator_pb2.GenerateRequest) -> Text:
    """Runs one request.

    Raises:
        Unavailable: it did not come to its whole length.
    """
    arrivals: list[tuple[float, int]] = []
    ledger = coordinator_pb2.Ledger()
    async for message in client.generate(request):
        if message.HasField("delta"):
            arrivals.append((time.perf_counter(), len(message.delta.token_ids)))
        elif message.HasField("finished"):
            ledger = message.finished.ledger
    num_tokens = sum(count for _, count in arrivals)
    if not arrivals or num_tokens != request.max_tokens:
        raise Unavailable(f"{num_tokens} tokens of {request.max_tokens} in {request.request_id!r}")
    first, last = arrivals[0][0], arrivals[-1][0]
    return Text(first, last, num_tokens, ledger.num_draft_rounds, ledger, tuple(arrivals))


@dataclass(frozen=True)
class Batch:
    """Texts that ran at the same time.

    Args:
        tokens_per_second: of all of them, between their first and last tokens.
        round_seconds: mean of a round: what a cycle takes, if each text commits once in it.
        tokens_per_round: mean.
    """

    tokens_per_second: float
    round_seconds: float
    tokens_per_round: float


async def take_together(client: AsyncClient, requests: Sequence[coordinator_pb2.GenerateRequest]) -> Batch:
    """Starts all at once and waits for all.

    Raises:
        Unavailable: one did not come to its whole length.
    """
    texts = await asyncio.gather(*(take(client, request) for request in requests))
    started = min(text.first_seconds for text in texts)
    seconds = max(text.last_seconds for text in texts) - started
    num_tokens = sum(text.num_tokens - 1 for text in texts)
    num_rounds = sum(text.num_rounds for text in texts)
    return Batch(
        num_tokens / seconds,
        statistics.fmean(text.round_seconds for text in texts),
        num_tokens / max(num_rounds, 1),
    )


async def steady_rate(
    client: AsyncClient, users: Sequence[Sequence[coordinator_pb2.GenerateRequest]]
) -> float:
    """Tokens/s while every user is served: each asks for its texts one after the other, and what comes
    before all have begun, or after the first has ended, does not count. So the load is what it is said
    to be, with texts that come and go.

    Raises:
        Unavailable: a text did not come to its whole length.
    """

    async def ask(requests: Sequence[coordinator_pb2.GenerateRequest]) -> list[tuple[float, int]]:
        return [arrival for request in requests for arrival in (await take(client, request)).arrivals]

    return rate_while_all(await asyncio.gather(*(ask(requests) for requests in users)))


def rate_while_all(arrivals: Sequence[Sequence[tuple[float, int]]]) -> float:
    """Tokens/s of all users between the last first arrival and the first last one."""
    start = max(user[0][0] for user in arrivals)
    end = min(user[-1][0] for user in arrivals)
    num_tokens = sum(count for user in arrivals for seconds, count in user if start < seconds <= end)
    return num_tokens / (end - start) if end > start else 0.0
