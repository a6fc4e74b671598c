"""One request to a coordinator, timed by its client, as the demo and the yardsticks need it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from coordinator.client import Answer, AsyncClient
from protos import coordinator_pb2
from protos.errors import DliteError


@dataclass(frozen=True, eq=False)
class Reply:
    """A finished generation. Seconds are the client's own clock, from the call on."""

    text: str
    token_ids: tuple[int, ...]
    ledger: coordinator_pb2.Ledger
    first_token_seconds: float
    total_seconds: float

    @property
    def decode_seconds(self) -> float:
        """From the first tokens to the end."""
        return self.total_seconds - self.first_token_seconds


@dataclass(frozen=True)
class Arm:
    """How proposals are made; `plain_arm` is decoding without speculation."""

    name: str
    speculation: coordinator_pb2.Speculation


def plain_arm() -> Arm:
    off = coordinator_pb2.SPECULATION_MODE_OFF
    return Arm("plain", coordinator_pb2.Speculation(mode=off))


def speculative_arm(source: str, verify_block_size: int | None = None) -> Arm:
    """Proposals from one source: "auto", "drafter", "lookup" or "lookup_then_drafter".

    Args:
        verify_block_size: rows of a round; None is the coordinator's default.
    """
    speculation = coordinator_pb2.Speculation(source=f"PROPOSAL_SOURCE_{source.upper()}")
    if verify_block_size is None:
        return Arm(source, speculation)
    speculation.verify_block_size = verify_block_size
    speculation.num_draft_tokens = verify_block_size - 1
    return Arm(f"{source} v={verify_block_size}", speculation)


async def ask(
    client: AsyncClient, request: coordinator_pb2.GenerateRequest, now: Callable[[], float] = time.monotonic
) -> Reply:
    """Raises:
    DliteError: the coordinator refused the request, or it ended with an error.
    """
    started = now()
    first: float | None = None
    answer = Answer()
    async for message in client.generate(request):
        answer.add(message)
        if first is None and answer.token_ids:
            first = now() - started
    if answer.finished.error or not answer.is_finished:
        raise DliteError(answer.finished.error or "the stream ended without a Finished message")
    total = now() - started
    ledger, ids = answer.finished.ledger, tuple(answer.token_ids)
    return Reply(answer.text, ids, ledger, total if first is None else first, total)


def greedy_chat(prompt: str, max_tokens: int, arm: Arm) -> coordinator_pb2.GenerateRequest:
    """A chat request at temperature 0."""
    return coordinator_pb2.GenerateRequest(
        messages=[coordinator_pb2.ChatMessage(role="user", content=prompt)],
        temperature=0.0,
        max_tokens=max_tokens,
        speculation=arm.speculation,
    )
