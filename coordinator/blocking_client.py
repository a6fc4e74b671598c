"""The client for code that does not use asyncio: the twin of `async_client`, on gRPC's blocking calls."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
from google.protobuf.message import Message

from coordinator.answer import Answer
from coordinator.async_client import CALL_SECONDS, LEAST_SECONDS, SERVICE, Conversation, make_request
from coordinator.patience import ClientOptions, Patience
from coordinator.resuming import Part, Progress
from protos import coordinator_pb2, rpc
from protos.errors import DliteError, InvalidRequest, Unavailable
from protos.security import Address
from protos.statuses import error_from

M = TypeVar("M", bound=Message)
Responses = Generator[coordinator_pb2.GenerateResponse, None, None]

log = logging.getLogger("dlite.client")


class Client:
    """A connection to a coordinator, or to several that serve the same model. A context manager.

    See `AsyncClient`: the same methods, which wait. May be used from several threads.
    """

    def __init__(self, *addresses: Address, options: ClientOptions | None = None) -> None:
        if not addresses:
            raise InvalidRequest("give at least one address", field="addresses")
        self._options = options or ClientOptions()
        self._channels = [rpc.open_blocking_channel(address) for address in addresses]
        self._current = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        for channel in self._channels:
            channel.close()

    def stream(self, prompt: Conversation, **fields: Any) -> BlockingStream:
        """Streams the text of one chat request, see `make_request`."""
        return BlockingStream(self.generate(make_request(prompt, **fields)))

    def ask(self, prompt: Conversation, **fields: Any) -> Answer:
        """The whole answer to one chat request, see `make_request` and `complete`."""
        return self.complete(make_request(prompt, **fields))

    def complete(
        self, request: coordinator_pb2.GenerateRequest, timeout_seconds: float | None = None
    ) -> Answer:
        """Waits for the whole answer. Raises DliteError when the request failed."""
        answer = Answer()
        for message in self.generate(request, timeout_seconds):
            answer.add(message)
        return answer

    def generate(
        self, request: coordinator_pb2.GenerateRequest, timeout_seconds: float | None = None
    ) -> Responses:
        """Streams the messages of one request. Closing the generator early aborts it.

        Args:
            timeout_seconds: the request ends with TimedOut after this time.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        progress = Progress(request)
        patience = Patience(self._options, len(self._channels))
        while (part := progress.next_part()) is not None:
            left = None if deadline is None else max(deadline - time.monotonic(), LEAST_SECONDS)
            try:
                yield from self._part(progress, part, left)
            except Unavailable as error:
                pause = patience.pause_seconds(progress.num_messages, time.monotonic())
                if pause is None:
                    yield from progress.release_held()
                    raise
                log.info("going on at another address: %s", error)
                progress.drop_held()
                self._current += 1
                time.sleep(pause)

    def abort(self, request_id: str) -> bool:
        """Aborts a request for all who read it; False when there is none of this id."""
        request = coordinator_pb2.AbortRequest(request_id=request_id)
        return self._call("Abort", request, coordinator_pb2.AbortResponse).found

    def set_speculation(self, request_id: str, speculation: coordinator_pb2.Speculation) -> bool:
        """Changes how a running request speculates; its text stays the same. False when there is none."""
        request = coordinator_pb2.SetSpeculationRequest(request_id=request_id, speculation=speculation)
        return self._call("SetSpeculation", request, coordinator_pb2.SetSpeculationResponse).found

    def list_models(self) -> coordinator_pb2.ListModelsResponse:
        return self._call(
            "ListModels", coordinator_pb2.ListModelsRequest(), coordinator_pb2.ListModelsResponse
        )

    def server_info(self) -> coordinator_pb2.GetServerInfoResponse:
        request = coordinator_pb2.GetServerInfoRequest()
        return self._call("GetServerInfo", request, coordinator_pb2.GetServerInfoResponse)

    def tokenize(self, request: coordinator_pb2.TokenizeRequest) -> list[int]:
        return list(self._call("Tokenize", request, coordinator_pb2.TokenizeResponse).token_ids)

    def _part(self, progress: Progress, part: Part, timeout_seconds: float | None) -> Responses:
        """One stream, whole or broken; an end that was held back stays so if it is Unavailable."""
        try:
            with closing(self._one_stream(part.request, timeout_seconds)) as messages:
                for message in messages:
                    yield from progress.take(message, part)
        except Unavailable:
            raise
        except DliteError:
            yield from progress.release_held()
            raise
        yield from progress.release_held()
        progress.require_end(part)

    def _one_stream(
        self, request: coordinator_pb2.GenerateRequest, timeout_seconds: float | None
    ) -> Responses:
        method: Any = self._channel.unary_stream(SERVICE + "Generate")
        call = method(request.SerializeToString(), timeout=timeout_seconds)
        try:
            for data in call:
                yield rpc.parse(coordinator_pb2.GenerateResponse, data)
        except grpc.RpcError as error:
            raise error_from(error) from error
        finally:
            call.cancel()

    @property
    def _channel(self) -> grpc.Channel:
        return self._channels[self._current % len(self._channels)]

    def _call(self, name: str, request: Message, response_type: type[M]) -> M:
        """A unary call, at each address once until one answers."""
        for _ in self._channels:
            method: Any = self._channel.unary_unary(SERVICE + name)
            try:
                return rpc.parse(response_type, method(request.SerializeToString(), timeout=CALL_SECONDS))
            except grpc.RpcError as failure:
                error = error_from(failure)
                if not isinstance(error, Unavailable):
                    raise error from failure
                self._current += 1
        raise error


class BlockingStream(Iterator[str]):
    """The text of one request as it comes; `answer` is what there is so far, at the end all of it.

    `close` (or leaving it as a context manager) aborts the request.
    """

    def __init__(self, messages: Responses) -> None:
        self.answer = Answer()
        self._messages = messages

    def __next__(self) -> str:
        while True:
            message = next(self._messages)
            text = self.answer.add(message)
            if text and message.delta.index == 0:
                return text

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the request if it runs."""
        self._messages.close()
