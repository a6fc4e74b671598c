"""Asks a coordinator what it tells of itself."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from protos import coordinator_pb2 as pb
from protos import rpc
from protos.security import Address
from protos.statuses import error_from

M = TypeVar("M", bound=Message)
SERVICE = "/dlite.v1.Coordinator/"
_CALL_SECONDS = 10.0


async def explain_tuner(address: Address, target_address: str = "") -> pb.ExplainTunerResponse:
    """One question.

    Args:
        target_address: whose tuner; empty for the busiest target's.

    Raises:
        DliteError: there is no such coordinator, or target.
    """
    channel = rpc.open_channel(address)
    try:
        request = pb.ExplainTunerRequest(target_address=target_address)
        return await call(channel, "ExplainTuner", request, pb.ExplainTunerResponse)
    finally:
        await channel.close()


async def get_stats(channel: grpc.aio.Channel) -> pb.GetStatsResponse:
    """Sums until now. Raises DliteError."""
    return await call(channel, "GetStats", pb.GetStatsRequest(), pb.GetStatsResponse)


async def watch_rounds(channel: grpc.aio.Channel) -> AsyncGenerator[bytes]:
    """The bytes of a trace from now on, until the caller leaves. Raises DliteError."""
    method: Any = channel.unary_stream(SERVICE + "WatchRounds")
    watching = method(pb.WatchRoundsRequest().SerializeToString())
    try:
        async for data in watching:
            yield rpc.parse(pb.WatchRoundsResponse, data).data
    except grpc.aio.AioRpcError as error:
        raise error_from(error) from error
    finally:
        watching.cancel()


async def call(channel: grpc.aio.Channel, name: str, request: Message, response_type: type[M]) -> M:
    """A unary call. Raises DliteError."""
    method: Any = channel.unary_unary(SERVICE + name)
    try:
        data: bytes = await method(request.SerializeToString(), timeout=_CALL_SECONDS)
    except grpc.aio.AioRpcError as error:
        raise error_from(error) from error
    return rpc.parse(response_type, data)
