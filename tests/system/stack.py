"""The three real services on loopback in the test's process, and a client's view of one request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from coordinator.config import CoordinatorConfig
from coordinator.startup import RunningCoordinator, start_coordinator
from draft_service.checkpoint import read_draft_config
from draft_service.loader import load_drafter
from draft_service.proposal import ProposesTokens
from draft_service.server import RunningDraft
from draft_service.server import serve as serve_draft
from draft_service.service import DraftService
from protos import coordinator_pb2, rpc
from target_service.build import BuiltTarget, assemble
from target_service.config import TargetConfig
from target_service.loader import load
from target_service.service import RunningTarget
from target_service.service import serve as serve_target
from tests.fakes import GOLDEN

TIMEOUT = 60.0


@dataclass(frozen=True, eq=False)
class Stack:
    target: RunningTarget
    draft: RunningDraft | None
    coordinator: RunningCoordinator


@dataclass(frozen=True)
class Reply:
    token_ids: list[int]
    text: str
    finished: coordinator_pb2.Finished


def golden_target(draft: Path, dtype: str = "float32") -> BuiltTarget:
    """The golden Qwen3 target with the layers that a golden drafter reads."""
    torch.set_num_threads(1)
    layers = tuple(read_draft_config(draft).target_layer_ids)
    config = TargetConfig.load(None, target="golden", tapped_layers=layers, num_pages=128)
    return assemble(load(str(GOLDEN / "target_qwen3"), dtype, "cpu"), config)


@asynccontextmanager
async def stack(
    built: BuiltTarget, drafter: ProposesTokens | Path | None, **coordinator: object
) -> AsyncIterator[Stack]:
    """Starts target, drafter (a checkpoint folder or a drafter object) and coordinator."""
    target = await serve_target(built, "127.0.0.1:0")
    draft: RunningDraft | None = None
    running: RunningCoordinator | None = None
    try:
        if drafter is not None:
            if isinstance(drafter, Path):
                drafter = load_drafter(drafter, GOLDEN / "target_qwen3", ())
            draft = await serve_draft(DraftService(drafter), "127.0.0.1:0")
        config = CoordinatorConfig.load(
            None,
            target_address=target.address,
            draft_address=draft.address if draft is not None else None,
            drain_seconds=0.2,
            **coordinator,
        )
        running = await start_coordinator(config)
        yield Stack(target, draft, running)
    finally:
        if running is not None:
            await running.stop()
        if draft is not None:
            await draft.stop()
        await target.stop()


def request(
    token_ids: Sequence[int], max_tokens: int, temperature: float = 0.0, v: int = 8, **fields: object
) -> coordinator_pb2.GenerateRequest:
    """A drafted request; v = 0 is plain decoding."""
    speculation = coordinator_pb2.Speculation(source=coordinator_pb2.PROPOSAL_SOURCE_DRAFTER)
    if v == 0:
        speculation.mode = coordinator_pb2.SPECULATION_MODE_OFF
    else:
        speculation.verify_block_size = v
    return coordinator_pb2.GenerateRequest(
        token_ids=token_ids,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=11,
        ignore_eos=True,
        speculation=speculation,
        **fields,  # type: ignore[arg-type]
    )


async def ask(address: str, message: coordinator_pb2.GenerateRequest) -> Reply:
    """Sends one request over gRPC and reads it to the end."""
    async with rpc.open_channel(address) as channel:
        call = channel.unary_stream(
            "/dlite.v1.Coordinator/Generate",
            request_serializer=coordinator_pb2.GenerateRequest.SerializeToString,
            response_deserializer=coordinator_pb2.GenerateResponse.FromString,
        )(message, timeout=TIMEOUT)
        ids: list[int] = []
        text: list[str] = []
        finished = coordinator_pb2.Finished()
        async for response in call:
            if response.HasField("delta"):
                assert response.delta.first_token_index == len(ids)
                ids += response.delta.token_ids
                text.append(response.delta.text)
            elif response.HasField("finished"):
                finished = response.finished
    assert finished.usage.completion_tokens == len(ids)
    return Reply(ids, "".join(text), finished)
