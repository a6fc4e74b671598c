"""A small asyncio client of the public API, used by the command line and by tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
from google.protobuf.message import Message

from protos import coordinator_pb2, rpc
from protos.common_pb2 import FINISH_REASON_UNSPECIFIED, FinishReason
from protos.errors import DliteError
from protos.statuses import error_from

M = TypeVar("M", bound=Message)
_CALL_SECONDS = 30.0
_SERVICE = "/dlite.v1.Coordinator/"


@dataclass(eq=False)
class Answer:
    """A whole answer, put together from its messages."""

    request_id: str = ""
    sampling_key: bytes = b""
    num_prompt_tokens: int = 0
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finished: coordinator_pb2.Finished = field(default_factory=coordinator_pb2.Finished)

    @property
    def finish_reason(self) -> FinishReason:
        """Unspecified until the Finished message came."""
        return self.finished.finish_reason

    @property
    def is_finished(self) -> bool:
        return self.finished.finish_reason != FINISH_REASON_UNSPECIFIED

    def add(self, message: coordinator_pb2.GenerateResponse) -> str:
        """Takes one message and returns its text.

        Raises:
            DliteError: a delta does not begin where the last one ended.
        """
        body = message.WhichOneof("body")
        if body == "started":
            self.request_id = message.started.request_id
            self.sampling_key = message.started.sampling_key
            self.num_prompt_tokens = message.started.num_prompt_tokens
        elif body == "finished":
            self.finished = message.finished
        elif body == "delta":
            self.token_ids.extend(message.delta.token_ids)
            self.text += message.delta.text
            return str(message.delta.text)
        return ""


class Client:
    """One connection to a coordinator. Use it as an async context manager.

    Every method raises the project's errors (see `protos.errors`) instead of gRPC's.
    """

    def __init__(self, address: str) -> None:
        self._channel = rpc.open_channel(address)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._channel.close()

    async def generate(
        self, request: coordinator_pb2.GenerateRequest
    ) -> AsyncIterator[coordinator_pb2.GenerateResponse]:
        """Streams the messages of one request. Leaving the loop early aborts it."""
        method: Any = self._channel.unary_stream(_SERVICE + "Generate")
        call = method(request.SerializeToString())
        try:
            async for data in call:
                yield rpc.parse(coordinator_pb2.GenerateResponse, data)
        except grpc.aio.AioRpcError as error:
            raise error_from(error) from error
        finally:
            call.cancel()

    async def complete(self, request: coordinator_pb2.GenerateRequest) -> Answer:
        """Waits for the whole answer.

        Raises:
            DliteError: the request failed, or its stream ended without a Finished message.
        """
        answer = Answer()
        async for message in self.generate(request):
            answer.add(message)
        if not answer.is_finished:
            raise DliteError("the stream ended without a Finished message")
        return answer

    async def abort(self, request_id: str) -> bool:
        request = coordinator_pb2.AbortRequest(request_id=request_id)
        return (await self._call("Abort", request, coordinator_pb2.AbortResponse)).found

    async def list_models(self) -> coordinator_pb2.ListModelsResponse:
        request = coordinator_pb2.ListModelsRequest()
        return await self._call("ListModels", request, coordinator_pb2.ListModelsResponse)

    async def server_info(self) -> coordinator_pb2.GetServerInfoResponse:
        request = coordinator_pb2.GetServerInfoRequest()
        return await self._call("GetServerInfo", request, coordinator_pb2.GetServerInfoResponse)

    async def tokenize(self, request: coordinator_pb2.TokenizeRequest) -> list[int]:
        response = await self._call("Tokenize", request, coordinator_pb2.TokenizeResponse)
        return list(response.token_ids)

    async def _call(self, name: str, request: Message, response_type: type[M]) -> M:
        method: Any = self._channel.unary_unary(_SERVICE + name)
        try:
            data: bytes = await method(request.SerializeToString(), timeout=_CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise error_from(error) from error
        return rpc.parse(response_type, data)
