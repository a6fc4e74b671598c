"""The same client for code that does not use asyncio: an `AsyncClient` on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

from coordinator.answer import Answer
from coordinator.async_client import AnswerStream, AsyncClient, Conversation, make_request
from coordinator.patience import ClientOptions
from protos import coordinator_pb2

T = TypeVar("T")


class Client:
    """A connection to a coordinator, or to several that serve the same model. A context manager.

    See `AsyncClient`: the same methods, which wait. May be used from several threads.
    """

    def __init__(self, *addresses: str, options: ClientOptions | None = None) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dlite client", daemon=True)
        self._thread.start()
        try:
            self._client = self._wait(_open(addresses, options))
        except BaseException:
            self._stop()
            raise

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
        """Closes the connection; harmless when it is closed."""
        if self._thread.is_alive():
            self._wait(self._client.close())
            self._stop()

    def stream(self, prompt: Conversation, **fields: Any) -> BlockingStream:
        """Streams the text of one chat request, see `make_request`."""
        request = make_request(prompt, **fields)
        return BlockingStream(self, self._wait(_stream(self._client, request)))

    def ask(self, prompt: Conversation, **fields: Any) -> Answer:
        """The whole answer to one chat request, see `make_request`."""
        return self._wait(self._client.ask(prompt, **fields))

    def complete(
        self, request: coordinator_pb2.GenerateRequest, timeout_seconds: float | None = None
    ) -> Answer:
        """Waits for the whole answer."""
        return self._wait(self._client.complete(request, timeout_seconds))

    def abort(self, request_id: str) -> bool:
        """Aborts a request for all who read it; False when there is none of this id."""
        return self._wait(self._client.abort(request_id))

    def list_models(self) -> coordinator_pb2.ListModelsResponse:
        return self._wait(self._client.list_models())

    def server_info(self) -> coordinator_pb2.GetServerInfoResponse:
        return self._wait(self._client.server_info())

    def tokenize(self, request: coordinator_pb2.TokenizeRequest) -> list[int]:
        return self._wait(self._client.tokenize(request))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the client's thread; an interrupt (Ctrl-C) here cancels it there."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class BlockingStream(Iterator[str]):
    """The text of one request as it comes; `answer` is what there is so far, at the end all of it.

    `close` (or leaving it as a context manager) aborts the request.
    """

    def __init__(self, client: Client, stream: AnswerStream) -> None:
        self._client = client
        self._stream = stream
        self._pending: asyncio.Task[Any] | None = None

    @property
    def answer(self) -> Answer:
        return self._stream.answer

    def __next__(self) -> str:
        text = self._client._wait(self._next())
        if text is None:
            raise StopIteration
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
        self._client._wait(self._close())

    async def _next(self) -> str | None:
        self._pending = asyncio.current_task()
        return await anext(self._stream, None)

    async def _close(self) -> None:
        # An interrupted `_next` may still be on its way out; a generator that runs cannot be closed.
        if self._pending is not None and not self._pending.done():
            self._pending.cancel()
            await asyncio.wait({self._pending})
        await self._stream.aclose()


async def _open(addresses: tuple[str, ...], options: ClientOptions | None) -> AsyncClient:
    return AsyncClient(*addresses, options=options)


async def _stream(client: AsyncClient, request: coordinator_pb2.GenerateRequest) -> AnswerStream:
    return AnswerStream(client, request)
