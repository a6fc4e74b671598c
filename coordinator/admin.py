"""The admin port: metrics for Prometheus, and whether the process lives and is ready, over plain HTTP.

A thread of its own serves it, so that a busy event loop does not look like a dead process.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from protos.errors import InvalidRequest, Unavailable

# An event loop that needs longer for one turn is taken for hanging.
LOOP_SECONDS = 5.0


class _Handler(WSGIRequestHandler):
    """Says nothing of requests, and waits for none longer than `timeout` seconds."""

    timeout = 10

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each request: a peer that connects and says nothing holds up nobody."""

    daemon_threads = True

    def server_bind(self) -> None:
        # Without the look-up of the host's name that the base class does.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()


class AdminServer:
    """`/metrics`, `/healthz` (the event loop answers), `/readyz` (it can serve). Make it on that loop.

    Args:
        address: host:port; port 0 picks a free one.
        is_ready: called on the admin thread.

    Raises:
        InvalidRequest: no such address.
        Unavailable: the port is taken.
    """

    def __init__(self, address: str, registry: CollectorRegistry, is_ready: Callable[[], bool]) -> None:
        self._metrics: Callable[[dict[str, Any], Any], Iterable[bytes]] = make_wsgi_app(registry)
        self._is_ready = is_ready
        self._loop = asyncio.get_running_loop()
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise InvalidRequest(f"{address!r} is not host:port", field="admin_address")
        try:
            self._server = make_server(host, int(port), self._app, _Server, _Handler)
        except OSError as error:
            raise Unavailable(f"cannot listen on {address}: is the port taken? ({error})") from error
        self.address = f"{host}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="admin", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread and closes the port."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _loop_answers(self) -> bool:
        """Whether the event loop gets to what it is asked to do."""
        answer: Future[None] = Future()
        try:
            self._loop.call_soon_threadsafe(answer.set_result, None)
            answer.result(LOOP_SECONDS)
        except (TimeoutError, RuntimeError):  # too busy, or closed
            return False
        return True

    def _app(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            return self._metrics(environ, start_response)
        if path == "/healthz" and self._loop_answers():
            return _reply(start_response, "200 OK", "alive")
        if path == "/healthz":
            return _reply(start_response, "503 Service Unavailable", "the event loop does not answer")
        if path == "/readyz" and self._is_ready():
            return _reply(start_response, "200 OK", "ready")
        if path == "/readyz":
            return _reply(start_response, "503 Service Unavailable", "not ready")
        return _reply(start_response, "404 Not Found", "there are /metrics, /healthz and /readyz")


def _reply(start_response: Any, status: str, text: str) -> list[bytes]:
    # A new list: the server adds headers of its own to it.
    start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [text.encode() + b"\n"]
