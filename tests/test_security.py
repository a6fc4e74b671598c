"""Who may connect: certificates, tokens, sockets; and what never leaves in the clear (CLUSTER, security)."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from grpc_health.v1 import health_pb2

from deploy.certs import make_certificates
from protos import coordinator_pb2 as pb
from protos import rpc
from protos.errors import InvalidRequest, Unauthenticated, Unavailable
from protos.security import Address, ClientSecurity, Endpoint, SecurityFiles, ServerSecurity
from protos.statuses import error_from
from protos.tokens import TokenTable, bearer_token, read_tokens, token_hash

NAME = "dlite.v1.Coordinator"
TOKEN = "the-token-of-a-tenant"
TABLE = TokenTable({token_hash(TOKEN): "team-a"})
SECONDS = 5.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    make_certificates(folder, ["server", "client"], ["node.example"])
    make_certificates(folder / "other", ["client"], [])
    return folder


def files(folder: Path, name: str, **more: Any) -> SecurityFiles:
    return SecurityFiles(folder / f"{name}.pem", folder / f"{name}-key.pem", folder / "ca.pem", **more)


async def tokenize(request: pb.TokenizeRequest, context: rpc.Context) -> pb.TokenizeResponse:
    return pb.TokenizeResponse(token_ids=[len(request.prompt)])


async def generate(request: pb.GenerateRequest, context: rpc.Context) -> AsyncIterator[pb.GenerateResponse]:
    yield pb.GenerateResponse(started=pb.Started(request_id="r"))


async def echo(context: rpc.Context) -> None:
    while isinstance(data := await context.read(), bytes):
        await context.write(data)


@asynccontextmanager
async def serving(security: ServerSecurity, address: str = "127.0.0.1:0") -> AsyncIterator[str]:
    methods = {
        "Tokenize": rpc.unary(pb.TokenizeRequest, tokenize),
        "Generate": rpc.server_stream(pb.GenerateRequest, generate),
        "Echo": rpc.duplex(echo),
    }
    running = await rpc.start_server(rpc.Service(NAME, methods), address, security)
    await running.set_ready(True)
    try:
        yield running.address
    finally:
        await running.stop(0)


async def call(endpoint: Address, metadata: Any = None) -> list[int]:
    async with rpc.open_channel(endpoint) as channel:
        method: Any = channel.unary_unary(f"/{NAME}/Tokenize")
        request = pb.TokenizeRequest(prompt="four").SerializeToString()
        try:
            data = await method(request, timeout=SECONDS, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            raise error_from(error) from error
    return list(pb.TokenizeResponse.FromString(data).token_ids)


async def code_of(channel: grpc.aio.Channel, method: str, metadata: Any = None) -> grpc.StatusCode:
    """How a method of any kind answers."""
    stream: Any = channel.stream_stream(method)
    running = stream(timeout=SECONDS, metadata=metadata)
    try:
        await running.write(b"")
        await running.done_writing()
        while isinstance(await running.read(), bytes):
            pass
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
        pass
    return await running.code()


async def test_tls_serves_who_trusts_the_authority(folder: Path) -> None:
    security = replace(files(folder, "server").server(), client_ca=b"")
    async with serving(security) as address:
        trusting = ClientSecurity(ca=(folder / "ca.pem").read_bytes())
        assert await call(Endpoint(address, trusting)) == [4]
        with pytest.raises(Unavailable):
            await call(address)
        other = ClientSecurity(ca=(folder / "other" / "ca.pem").read_bytes())
        with pytest.raises(Unavailable):
            await call(Endpoint(address, other))


async def test_mutual_tls_serves_nothing_without_a_certificate_of_the_authority(folder: Path) -> None:
    async with serving(files(folder, "server").server()) as address:
        mine = files(folder, "client").client()
        assert await call(Endpoint(address, mine)) == [4]
        stranger = replace(mine, identity=files(folder / "other", "client").client().identity)
        for security in (replace(mine, identity=None), stranger, ClientSecurity()):
            async with rpc.open_channel(Endpoint(address, security)) as channel:
                for method in METHODS:
                    assert await code_of(channel, method) is grpc.StatusCode.UNAVAILABLE, method


METHODS = (
    *(f"/{NAME}/{name}" for name in ("Tokenize", "Generate", "Echo", "Nothing")),
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    "/grpc.health.v1.Health/Check",
)


async def test_without_a_token_nothing_is_served_but_health(folder: Path) -> None:
    security = replace(files(folder, "server").server(), client_ca=b"", tokens=TABLE)
    async with serving(security) as address:
        trusting = ClientSecurity(ca=(folder / "ca.pem").read_bytes())
        async with rpc.open_channel(Endpoint(address, trusting)) as channel:
            for metadata in (
                None,
                [("authorization", "Bearer wrong")],
                [("authorization", f"Basic {TOKEN}")],
            ):
                for method in METHODS[:-1]:
                    code = await code_of(channel, method, metadata)
                    assert code is grpc.StatusCode.UNAUTHENTICATED, method
            health: Any = channel.unary_unary(METHODS[-1])
            reply = await health(health_pb2.HealthCheckRequest().SerializeToString(), timeout=SECONDS)
            assert health_pb2.HealthCheckResponse.FromString(reply).status == 1
        assert await call(Endpoint(address, replace(trusting, token=TOKEN))) == [4]
        with pytest.raises(Unauthenticated, match="authorization"):
            await call(Endpoint(address, replace(trusting, token=TOKEN[:-1])))


async def test_a_unix_socket_is_its_owners_and_takes_tokens(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/dlite.sock"
    for security, client in (
        (ServerSecurity(), ClientSecurity()),
        (ServerSecurity(tokens=TABLE), ClientSecurity(token=TOKEN)),
    ):
        async with serving(security, address) as bound:
            assert bound == address
            assert stat.S_IMODE((tmp_path / "dlite.sock").stat().st_mode) == 0o600
            assert await call(Endpoint(address, client)) == [4]
    async with serving(ServerSecurity(tokens=TABLE), address):
        with pytest.raises(Unauthenticated):
            await call(Endpoint(address, ClientSecurity(token="no")))


async def test_a_token_is_never_sent_in_the_clear() -> None:
    with pytest.raises(InvalidRequest, match="in the clear"):
        rpc.open_channel(Endpoint("127.0.0.1:1", ClientSecurity(token=TOKEN)))
    with pytest.raises(InvalidRequest, match="in the clear"):
        await rpc.start_server(rpc.Service(NAME, {}), "0.0.0.0:0", ServerSecurity(tokens=TABLE))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tokens: []", "nobody could call"),
        ("[1]", "mapping"),
        ("tokens: [{sha256: abc, tenant: a}]", "64 hex digits"),
        ("tokens: [{token: abc, tenant: a}]", "entry 1"),
        (f"tokens: [{{sha256: {'a' * 64}, tenant: 'A B'}}]", "a tenant's name"),
        (f"tokens: [{{sha256: {'a' * 64}, tenant: a}}, {{sha256: {'a' * 64}, tenant: b}}]", "twice"),
        ("tokens: [", "cannot read"),
    ],
)
def test_a_bad_file_of_tokens_is_named_and_not_quoted(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "tokens.yaml"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match=message) as caught:
        read_tokens(path)
    assert "abc" not in str(caught.value)


def test_a_file_of_tokens_tells_the_tenant(tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    path.write_text(yaml.safe_dump({"tokens": [{"sha256": token_hash(TOKEN), "tenant": "team-a"}]}))
    table = read_tokens(path)
    assert table.tenant_of(TOKEN) == "team-a"
    assert table.tenant_of("") is None
    assert table.tenant_of(token_hash(TOKEN)) is None
    assert TOKEN not in repr(table)
    assert bearer_token([("other", "x"), ("authorization", f"bearer  {TOKEN} ")]) == TOKEN


def test_only_a_known_token_has_a_tenant() -> None:
    assert TABLE.tenant_of(TOKEN) == "team-a"
    for wrong in ("", TOKEN[:-1], TOKEN + " ", token_hash(TOKEN)):
        assert TABLE.tenant_of(wrong) is None


def test_a_key_is_the_owners_and_an_authority_is_used_again(tmp_path: Path) -> None:
    first = make_certificates(tmp_path, ["a"], [])
    authority = (tmp_path / "ca.pem").read_bytes()
    assert [path.name for path in first] == ["ca.pem", "ca-key.pem", "a.pem", "a-key.pem"]
    assert stat.S_IMODE((tmp_path / "a-key.pem").stat().st_mode) == 0o600
    assert [path.name for path in make_certificates(tmp_path, ["b"], [])] == ["b.pem", "b-key.pem"]
    assert (tmp_path / "ca.pem").read_bytes() == authority


def test_secrets_have_no_repr(folder: Path) -> None:
    security = replace(files(folder, "client").client(), token=TOKEN)
    assert TOKEN not in repr(security)
    assert "PRIVATE" not in repr(security)
