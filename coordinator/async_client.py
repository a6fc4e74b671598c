"""The asyncio client of the public API."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
from google.protobuf.message import Message

from coordinator.answer import Answer
from coordinator.patience import ClientOptions, Patience
from coordinator.resuming import Part, Progress
from protos import coordinator_pb2, rpc
from protos.errors import DliteError, InvalidRequest, Unavailable
from protos.security import Address
from protos.statuses import error_from

M = TypeVar("M", bound=Message)
Conversation = str | Sequence[Mapping[str, Any] | coordinator_pb2.ChatMessage]
CALL_SECONDS = 30.0
LEAST_SECONDS = 0.001
SERVICE = "/dlite.v1.Coordinator/"

log = logging.getLogger("dlite.client")


def make_request(prompt: Conversation, **fields: Any) -> coordinator_pb2.GenerateRequest:
    """A chat request.

    Args:
        prompt: the user's message, or a conversation of `{"role", "content"}`.
        fields: of `GenerateRequest`, by name: max_tokens, temperature, seed, stop, session_id, ..

    Raises:
        InvalidRequest: no such field, or a value that has no place in it.
    """
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    try:
        return coordinator_pb2.GenerateRequest(messages=messages, **fields)
    except (ValueError, TypeError) as error:
        raise InvalidRequest(f"not a request: {error}") from error


class AsyncClient:
    """A connection to a coordinator, or to several that serve the same model. An async context manager.

    A text whose coordinator goes away in the middle is continued by itself, at the next address, with
    no gap and no repeat. Every method raises the project's errors (`protos.errors`) instead of gRPC's.
    """

    def __init__(self, *addresses: Address, options: ClientOptions | None = None) -> None:
        if not addresses:
            raise InvalidRequest("give at least one address", field="addresses")
        self._options = options or ClientOptions()
        self._channels = [rpc.open_channel(address) for address in addresses]
        self._current = 0
        # Ids by which requests are known where they were resumed.
        self._resumed_ids: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()

    def stream(self, prompt: Conversation, **fields: Any) -> AnswerStream:
        """Streams the text of one chat request, see `make_request`."""
        return AnswerStream(self, make_request(prompt, **fields))

    async def ask(self, prompt: Conversation, **fields: Any) -> Answer:
        """The whole answer to one chat request, see `make_request` and `complete`."""
        return await self.complete(make_request(prompt, **fields))

    async def complete(
        self, request: coordinator_pb2.GenerateRequest, timeout_seconds: float | None = None
    ) -> Answer:
        """Waits for the whole answer.

        Raises:
            DliteError: the request failed, or its stream ended without a Finished message.
        """
        answer = Answer()
        async for message in self.generate(request, timeout_seconds):
            answer.add(message)
        if not answer.is_finished:
            raise DliteError("the stream ended without a Finished message")
        return answer

    async def generate(
        self, request: coordinator_pb2.GenerateRequest, timeout_seconds: float | None = None
    ) -> AsyncGenerator[coordinator_pb2.GenerateResponse]:
        """Streams the messages of one request. Leaving the loop early aborts it.

        Args:
            timeout_seconds: the request ends with TimedOut after this time.
        """
        loop = asyncio.get_running_loop()
        deadline = None if timeout_seconds is None else loop.time() + timeout_seconds
        progress = Progress(request)
        patience = Patience(self._options, len(self._channels))
        while (part := progress.next_part()) is not None:
            left = None if deadline is None else max(deadline - loop.time(), LEAST_SECONDS)
            try:
                async with aclosing(self._part(progress, part, left)) as messages:
                    async for message in messages:
                        yield message
            except Unavailable as error:
                pause = patience.pause_seconds(progress.num_messages, loop.time())
                if pause is None:
                    for message in progress.release_held():
                        yield message
                    raise
                log.info("going on at another address: %s", error)
                progress.drop_held()
                self._current += 1
                await asyncio.sleep(pause)

        self._resumed_ids.pop(progress.answer.request_id, None)

    async def _part(
        self, progress: Progress, part: Part, timeout_seconds: float | None
    ) -> AsyncGenerator[coordinator_pb2.GenerateResponse]:
        """One stream, whole or broken; an end that was held back stays so if it is Unavailable."""
        if part.index is not None:
            self._resumed_ids[progress.answer.request_id] = part.request.request_id
        try:
            async with aclosing(self._one_stream(part.request, timeout_seconds)) as messages:
                async for message in messages:
                    for passed in progress.take(message, part):
                        yield passed
        except Unavailable:
            raise
        except DliteError:
            for message in progress.release_held():
                yield message
            raise
        for message in progress.release_held():
            yield message
        progress.require_end(part)

    async def _one_stream(
        self, request: coordinator_pb2.GenerateRequest, timeout_seconds: float | None
    ) -> AsyncGenerator[coordinator_pb2.GenerateResponse]:
        method: Any = self._channel.unary_stream(SERVICE + "Generate")
        call = method(request.SerializeToString(), timeout=timeout_seconds)
        try:
            async for data in call:
                yield rpc.parse(coordinator_pb2.GenerateResponse, data)
        except grpc.aio.AioRpcError as error:
            raise error_from(error) from error
        finally:
            call.cancel()

    async def abort(self, request_id: str) -> bool:
        """Aborts a request for all who read it; False when there is none of this id."""
        current = self._resumed_ids.get(request_id, request_id)
        request = coordinator_pb2.AbortRequest(request_id=current)
        return (await self._call("Abort", request, coordinator_pb2.AbortResponse)).found

    async def set_speculation(self, request_id: str, speculation: coordinator_pb2.Speculation) -> bool:
        """Changes how a running request speculates; its text stays the same. False when there is none."""
        current = self._resumed_ids.get(request_id, request_id)
        request = coordinator_pb2.SetSpeculationRequest(request_id=current, speculation=speculation)
        return (await self._call("SetSpeculation", request, coordinator_pb2.SetSpeculationResponse)).found

    async def list_models(self) -> coordinator_pb2.ListModelsResponse:
        request = coordinator_pb2.ListModelsRequest()
        return await self._call("ListModels", request, coordinator_pb2.ListModelsResponse)

    async def server_info(self) -> coordinator_pb2.GetServerInfoResponse:
        request = coordinator_pb2.GetServerInfoRequest()
        return await self._call("GetServerInfo", request, coordinator_pb2.GetServerInfoResponse)

    async def tokenize(self, request: coordinator_pb2.TokenizeRequest) -> list[int]:
        response = await self._call("Tokenize", request, coordinator_pb2.TokenizeResponse)
        return list(response.token_ids)

    @property
    def _channel(self) -> grpc.aio.Channel:
        return self._channels[self._current % len(self._channels)]

    async def _call(self, name: str, request: Message, response_type: type[M]) -> M:
        """A unary call, at each address once until one answers."""
        for _ in self._channels:
            method: Any = self._channel.unary_unary(SERVICE + name)
            try:
                data: bytes = await method(request.SerializeToString(), timeout=CALL_SECONDS)
                return rpc.parse(response_type, data)
            except grpc.aio.AioRpcError as failure:
                error = error_from(failure)
                if not isinstance(error, Unavailable):
                    raise error from failure
                self._current += 1
        raise error


class AnswerStream:
    """The text of one request as it comes; `answer` is what there is so far, at the end all of it.

    Leaving it early with `aclose` (or as an async context manager) aborts the request.
    """

    def __init__(self, client: AsyncClient, request: coordinator_pb2.GenerateRequest) -> None:
        self.answer = Answer()
        self._messages = client.generate(request)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        while True:
            message = await anext(self._messages)
            text = self.answer.add(message)
            if text and message.delta.index == 0:
                return text

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._messages.aclose()
