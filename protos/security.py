"""Who may connect, and how: TLS, mutual TLS, bearer tokens, Unix sockets.

A process has one identity (certificate and key) and trusts one authority. With an authority it asks its
callers for a certificate of that authority, unless told not to; with a token table it asks for a token.
A Unix socket carries no TLS: the file's permissions (owner only) say who may connect.

Without what is asked for, nothing is served. The one exception: with tokens, `grpc.health.v1` answers
without one, because a cluster's probes have none; it says SERVING or not, and nothing else. Without a
certificate where one is asked for there is no connection at all, so no health either. Reflection and
everything else need the token.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from grpc_status import rpc_status

from protos.config import ServiceConfig
from protos.errors import DliteError, Forbidden, InvalidRequest, Unauthenticated
from protos.statuses import to_status
from protos.tokens import TokenTable, bearer_token, read_token_file, read_tokens

UNIX = "unix:"
_OPEN_METHODS = frozenset({"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"})
_SOCKET_MODE = 0o600


@dataclass(frozen=True)
class Identity:
    """A certificate chain and its key, PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True)
class ServerSecurity:
    """What a server asks of its callers.

    Args:
        identity: TLS with this certificate; None is plaintext.
        client_ca: PEM; callers need a certificate that it signed.
        tokens: callers need one of these.
        restricted: full names of methods that only operators may call.
        operators: tenants.
    """

    identity: Identity | None = None
    client_ca: bytes = b""
    tokens: TokenTable | None = None
    restricted: frozenset[str] = frozenset()
    operators: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ClientSecurity:
    """How a caller shows who it is, and knows whom it calls.

    Args:
        ca: PEM of the authority that signs servers' certificates; empty is plaintext.
        identity: for servers that ask for a certificate.
        token: for servers that ask for one; sent over TLS or a Unix socket only.
    """

    ca: bytes = b""
    identity: Identity | None = None
    token: str = field(default="", repr=False)


@dataclass(frozen=True)
class Endpoint:
    """An address and how to connect there."""

    address: str
    security: ClientSecurity

    def __str__(self) -> str:
        return self.address


# Where to connect; a plain string connects without TLS and token.
Address = str | Endpoint


def channel_credentials(address: str, security: ClientSecurity) -> grpc.ChannelCredentials | None:
    """Credentials of a channel; None is plaintext.

    Raises:
        InvalidRequest: a token would travel in the clear, or the PEM is none.
    """
    if security.ca and not address.startswith(UNIX):
        identity = security.identity
        credentials = grpc.ssl_channel_credentials(
            security.ca,
            identity.key if identity is not None else None,
            identity.certificate if identity is not None else None,
        )
    elif not security.token:
        return None
    elif address.startswith(UNIX):
        credentials = grpc.local_channel_credentials(grpc.LocalConnectionType.UDS)
    else:
        raise InvalidRequest(
            f"a token is not sent to {address} in the clear: give --tls-ca, or a unix: address",
            field="tls_ca",
        )
    if security.token:
        token = grpc.access_token_call_credentials(security.token)
        credentials = grpc.composite_channel_credentials(credentials, token)
    return credentials


def add_port(server: grpc.aio.Server, address: str, security: ServerSecurity) -> int:
    """Binds an address as the security says; returns the port.

    Raises:
        RuntimeError: it cannot be bound.
    """
    if address.startswith(UNIX):
        local = grpc.local_server_credentials(grpc.LocalConnectionType.UDS)
        port = (
            server.add_secure_port(address, local) if security.tokens else server.add_insecure_port(address)
        )
        os.chmod(address.removeprefix(UNIX), _SOCKET_MODE)
        return port
    if security.identity is None:
        return server.add_insecure_port(address)
    pair = (security.identity.key, security.identity.certificate)
    ca = security.client_ca or None
    credentials = grpc.ssl_server_credentials([pair], ca, require_client_auth=ca is not None)
    return server.add_secure_port(address, credentials)


class TokenGuard(grpc.aio.ServerInterceptor):
    """Lets calls with a known token pass, and health checks; restricted methods only for operators."""

    def __init__(self, tokens: TokenTable, restricted: frozenset[str], operators: frozenset[str]) -> None:
        self._tokens = tokens
        self._restricted = restricted
        self._operators = operators

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        method = handler_call_details.method
        tenant = self._tokens.tenant_of(bearer_token(handler_call_details.invocation_metadata))
        if tenant is None and method not in _OPEN_METHODS:
            return _refusal(Unauthenticated("no valid bearer token in the call's metadata `authorization`"))
        if method in self._restricted and tenant not in self._operators:
            return _refusal(Forbidden(f"{method} shows all tenants: it needs a tenant with operator: true"))
        return await continuation(handler_call_details)


def _refusal(error: DliteError) -> grpc.RpcMethodHandler[Any, Any]:
    """A method that answers with this error, whatever kind of method was called."""

    async def refuse(_data: bytes, context: Any) -> bytes:
        status: Any = rpc_status.to_status  # untyped
        await context.abort_with_status(status(to_status(error)))
        return b""

    return grpc.unary_unary_rpc_method_handler(refuse)


def guards(security: ServerSecurity) -> tuple[grpc.aio.ServerInterceptor, ...]:
    """Interceptors of a server."""
    if security.tokens is None:
        return ()
    return (TokenGuard(security.tokens, security.restricted, security.operators),)


def require_tokens_unseen(security: ServerSecurity, address: str) -> None:
    """Refuses a port where tokens would travel a network in the clear.

    Raises:
        InvalidRequest: tokens without TLS, on neither a Unix socket nor this machine's own address.
    """
    host = address.rpartition(":")[0].strip("[]")
    is_local = address.startswith((UNIX, "127.")) or host in ("localhost", "::1")
    if security.tokens is not None and security.identity is None and not is_local:
        raise InvalidRequest(
            f"tokens would travel to {address} in the clear: give --tls-cert and --tls-key", field="tls_cert"
        )


@dataclass(frozen=True)
class SecurityFiles:
    """Where a process finds its certificate, its key, the authority it trusts, tokens; None: not used."""

    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    auth_tokens: Path | None = None
    token_file: Path | None = None
    asks_certificates: bool = True

    def server(self) -> ServerSecurity:
        """What its server asks for.

        Raises:
            InvalidRequest: a file cannot be read; tokens would travel in the clear.
        """
        tokens = read_tokens(self.auth_tokens) if self.auth_tokens is not None else None
        client_ca = _read(self.tls_ca, "tls_ca") if self.asks_certificates else b""
        return ServerSecurity(self._identity(), client_ca, tokens)

    @classmethod
    def of(cls, config: ServiceConfig, token_file: Path | None = None) -> SecurityFiles:
        """Those of a service's settings.

        Args:
            token_file: what it shows when it calls others.
        """
        asks = config.tls_client_auth == "require"
        return cls(config.tls_cert, config.tls_key, config.tls_ca, config.auth_tokens, token_file, asks)

    def client(self) -> ClientSecurity:
        """How it calls others.

        Raises:
            InvalidRequest: a file cannot be read.
        """
        token = read_token_file(self.token_file) if self.token_file is not None else ""
        return ClientSecurity(_read(self.tls_ca, "tls_ca"), self._identity(), token)

    def _identity(self) -> Identity | None:
        if self.tls_cert is None or self.tls_key is None:
            return None
        return Identity(_read(self.tls_cert, "tls_cert"), _read(self.tls_key, "tls_key"))


def _read(path: Path | None, field_name: str) -> bytes:
    if path is None:
        return b""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"cannot read {path}: {type(error).__name__}", field=field_name) from error
    if b"-----BEGIN" not in data:
        raise InvalidRequest(f"{path} is not a PEM file", field=field_name)
    return data
