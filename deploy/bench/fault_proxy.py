"""Stands between coordinators and one service and relays every call, whatever its kind, as raw bytes.

What passes goes through a `Middle`, such as `fault_watch.Watch`, which may drop, delay or repeat messages.
To the coordinator the proxy is the service: its streams end as the service's do.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Protocol

import grpc

from protos import rpc

# What becomes of a message on a stream of this number: seconds to wait, and what goes on then.
Change = Callable[[bytes, int], Iterator[tuple[float, bytes]]]


class Middle(Protocol):
    """Sees, and changes, what passes."""

    def ways(self, method: str) -> tuple[Change, Change] | None:
        """To and from the service; None for a call that is none of its business."""
        ...

    def forget(self, stream: int) -> None:
        """A stream with ways is over."""
        ...


def _as_it_is(data: bytes, _stream: int) -> Iterator[tuple[float, bytes]]:
    yield 0.0, data


class _Way:
    """One direction of one call: messages leave in the order in which they are due."""

    def __init__(self, read: Any, write: Any, change: Change, stream: int) -> None:
        self._read, self._write, self._change, self._stream = read, write, change, stream
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def run(self) -> None:
        """Until there is nothing more to read and all that is due has left."""
        reader = asyncio.create_task(self._read_all())
        try:
            while (data := await self._queue.get()) is not None:
                await self._write(data)
            await reader
        finally:
            reader.cancel()

    async def _read_all(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while isinstance(data := await self._read(), bytes):
                for seconds, part in self._change(data, self._stream):
                    if seconds:
                        loop.call_later(seconds, self._queue.put_nowait, part)
                    else:
                        self._queue.put_nowait(part)
        finally:
            self._queue.put_nowait(None)


class _Relay(grpc.GenericRpcHandler):
    """Every method is a stream of bytes each way: on the wire a unary call is one too."""

    def __init__(self, proxy: ServiceProxy) -> None:
        self._proxy = proxy

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        method = str(details.method)

        async def call(_requests: AsyncIterator[bytes], context: rpc.Context) -> None:
            await self._proxy.relay(method, context)

        return grpc.stream_stream_rpc_method_handler(call)


class ServiceProxy:
    """A proxy on an address of its own. `upstream` is set before the first call."""

    def __init__(self, middle: Middle) -> None:
        self._middle = middle
        self.upstream = ""
        self.address = ""
        self._numbers = itertools.count(1)
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._server: grpc.aio.Server | None = None
        self._channel: grpc.aio.Channel | None = None

    @property
    def num_streams(self) -> int:
        """Streams with ways that are open."""
        return len(self._calls)

    async def start(self) -> None:
        """Listens on a free port of this machine."""
        self._server = grpc.aio.server(options=rpc.SERVER_OPTIONS)
        self._server.add_generic_rpc_handlers((_Relay(self),))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0)
        if self._channel is not None:
            await self._channel.close()

    def cut(self) -> int:
        """Breaks every stream with ways; returns how many there were."""
        for call in self._calls.values():
            call.cancel()
        return len(self._calls)

    async def relay(self, method: str, context: rpc.Context) -> None:
        """One call, from its beginning to the status that the service gives it."""
        if self._channel is None:
            self._channel = rpc.open_channel(self.upstream)
        ways, number = self._middle.ways(method), next(self._numbers)
        call: Any = self._channel.stream_stream(method)(metadata=context.invocation_metadata())
        to_service, from_service = ways or (_as_it_is, _as_it_is)
        up = _Way(context.read, call.write, to_service, number)
        down = _Way(call.read, context.write, from_service, number)
        tasks = asyncio.create_task(self._send(up, call)), asyncio.create_task(down.run())
        if ways:
            self._calls[number] = tasks[1]
        try:
            # The answers end the call; so does an error of the way up, which has no other end.
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0].done():
                tasks[0].result()
                await asyncio.wait({tasks[1]})
            if tasks[1].cancelled():
                await context.abort(grpc.StatusCode.UNAVAILABLE, "cut")
            if (code := await call.code()) is not grpc.StatusCode.OK:
                await context.abort(
                    code, await call.details() or "", tuple(await call.trailing_metadata() or ())
                )
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            call.cancel()
            if ways:
                del self._calls[number]
                self._middle.forget(number)

    async def _send(self, up: _Way, call: Any) -> None:
        # A service that has ended takes no more; its status is what counts.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await up.run()
            await call.done_writing()
